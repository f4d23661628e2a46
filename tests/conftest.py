"""What makes the whole suite fast: which process has which tests when, and a collector that leaves modules alone."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: Rooms and files in which few tests take long. They begin first, so that no process is left alone with one at the end;
#: all others come after, by the number of their tests.
LONGEST = (
    "examples",
    "ranks",
    "browser",
    "cli",
    "integrations",
    "testing",
    "plot/test_example_notebook.py",
    "stats/test_triton_backend.py",
    "benchmarks/test_bench_gpu.py",
    "device/test_card.py",
    "device/test_capturable.py",
    "docs/test_docs_site.py",
    "benchmarks/test_patients_running.py",
    "benchmarks/test_bench_scale.py",
    "release/test_release_files.py",
    "sinks/test_sink_mlflow.py",
    "sinks/test_sink_wandb.py",
    "record/test_record_size.py",
    "test_hooks_cost.py",
    "test_hooks_attach.py",
    "test_hooks_import.py",
    "docs/test_docs_code_blocks.py",
    "stats/test_stats_without_kernel.py",
    "diagnosis/test_diagnosis_quiet.py",
    "diagnosis/test_diagnosis_confounders.py",
    "diagnosis/test_diagnosis_bottomless.py",
)

#: Rooms whose tests share what takes seconds to start: a server that forks, a browser. One process has them all.
SHARED = ("ranks", "browser", "cli")


def place(path: Path) -> int:
    """Where a file stands in LONGEST, or behind its end."""
    within = path.relative_to(Path(__file__).parent).as_posix()
    found = [at for at, name in enumerate(LONGEST) if within == name or within.startswith(f"{name}/")]
    return found[0] if found else len(LONGEST)


def bundle(nodeid: str) -> str:
    """Name what is given to a process as a whole: a file, or a room."""
    file = nodeid.partition("::")[0]
    room = Path(file).parent.name
    return room if room in SHARED else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out bundles; None, as always, where another way was asked for than `--dist loadfile`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Bundles(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return bundle(nodeid)

    return Bundles(config, log)


@contextlib.contextmanager
def compiling() -> Generator[None, None, None]:
    """Collect alone where nothing is compiled yet, rather than compile the same thousands of modules at the same time.

    Those that wait find all of it done, which saves each of them twenty seconds of a processor that others can use.
    Whether it is done is told by torch, which nothing imports before tests are collected.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.cached is None or sys.dont_write_bytecode or importlib.util.find_spec("fcntl") is None:
        yield
        return
    import fcntl

    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Path(torch.cached).exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Put what has been imported out of the collector's sight: a million objects, a second for each `gc.collect()`."""
    gc.disable()
    try:
        with compiling():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file; tests of one file stay in their order."""
    sizes = Counter(item.path for item in items)
    places = {path: (place(path), -size, path) for path, size in sizes.items()}
    items.sort(key=lambda item: places[item.path])
