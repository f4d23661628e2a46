"""What does not depend on the machine: operations, host synchronisations, passes over memory; and peak memory."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradmedic as gm
from gradmedic.stats import native
from overhead_models import Workload, make_transformer

_SYNCS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")
_MEMORY_STEPS = 8


class Tally(TorchDispatchMode):
    """Counts operations, and the elements of gradients that they read or write."""

    def __init__(self, gradients: Iterable[torch.Tensor | None] = ()) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.elements = 0
        self._storages = {g.untyped_storage().data_ptr() for g in gradients if g is not None}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.ops[name] += 1
        if not func.is_view and name not in ("detach", "as_strided", "view", "expand", "alias"):
            self.touch(args)
        return func(*args, **(kwargs or {}))

    def touch(self, args: Any) -> None:
        """Count the elements of gradients among an operation's arguments."""
        for each in _tensors(args):
            if self._storages and each.untyped_storage().data_ptr() in self._storages:
                self.elements += each.numel()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


@contextmanager
def _native_reads(tally: Tally) -> Iterator[None]:
    """Count what the compiled kernel reads and writes, which torch's dispatcher does not see."""
    original = native.measure, native.multiply

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensors: list[Any], argument: Any) -> Any:
            tally.ops["(native kernel)"] += 1
            tally.touch(tensors)
            return function(tensors, argument)

        return call

    native.measure, native.multiply = (counted(each) for each in original)
    try:
        yield
    finally:
        native.measure, native.multiply = original


def _tally(work: Workload, after_backward: Callable[[], Any] | None) -> tuple[Counter[str], float]:
    """Count from the backward pass to the end of the step, for the usual one of seven steps: the one that does least.

    Others look at modules, or at the norms of weights.
    """
    found = []
    for _ in range(7):
        work.optimizer.zero_grad()
        loss = work.loss()
        with Tally() as before:
            loss.backward()
        with Tally(p.grad for p in work.model.parameters()) as tally, _native_reads(tally):
            if after_backward is not None:
                after_backward()
            work.optimizer.step()
        found.append((before.ops + tally.ops, tally.elements / work.elements))
    return min(found, key=lambda each: each[0].total())


def count_table(make: Callable[[], Workload]) -> list[dict[str, Any]]:
    """Print what a recorded step launches above the unwatched one."""
    rows: list[dict[str, Any]] = []
    work = make()
    for _ in range(2):
        work.optimizer.zero_grad()
        work.loss().backward()
        work.optimizer.step()
    plain = _tally(work, None)
    clip = _tally(work, lambda: torch.nn.utils.clip_grad_norm_(work.model.parameters(), 1.0))
    rows.append(_row("torch clip_grad_norm_", clip, plain))
    ways: list[tuple[str, dict[str, Any]]] = [
        ("gm.watch(record)", {}),
        ("gm.watch(record) with clip.norm", {"transform": gm.clip.norm(1.0)}),
        ("gm.watch(record), device path (backend=torch)", {"backend": "torch"}),
        ("device path with clip.norm", {"backend": "torch", "transform": gm.clip.norm(1.0)}),
    ]
    for name, options in ways:
        with (
            tempfile.TemporaryDirectory() as folder,
            gm.watch(work.model, work.optimizer, record=Path(folder) / "run", **options) as monitor,
        ):
            for _ in range(6):
                work.optimizer.zero_grad()
                work.loss().backward()
                work.optimizer.step()
            rows.append(_row(name, _tally(work, None), plain))
            rows[-1]["host_syncs_own_account"] = monitor.overhead.host_syncs
    print(f"\n### Counts a recorded step, above the unwatched one ({work.tensors} tensors)\n")
    print("| with | torch operations | of them views | host reads of scalars | kernel calls | passes over gradients |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| {name} | {ops} | {views} | {syncs} | {native} | {passes:.2f} |".format(**row))
    return rows


def _row(name: str, found: tuple[Counter[str], float], plain: tuple[Counter[str], float]) -> dict[str, Any]:
    ops = found[0] - plain[0]
    views = sum(
        ops[view] for view in ("detach", "as_strided", "view", "select", "slice", "split", "alias", "unsqueeze")
    )
    return {
        "name": name,
        "ops": ops.total() - ops["(native kernel)"],
        "views": views,
        "syncs": sum(ops[sync] for sync in _SYNCS),
        "native": ops["(native kernel)"],
        "passes": found[1] - plain[1],
        "by_name": dict(ops.most_common(12)),
    }


def memory_child(way: str) -> None:
    """Train for some steps and print the process's peak memory in KiB; run in a process of its own."""
    work = make_transformer()

    def train() -> None:
        for _ in range(_MEMORY_STEPS):
            work.optimizer.zero_grad()
            work.loss().backward()
            work.optimizer.step()

    train()
    if way == "watched":
        with tempfile.TemporaryDirectory() as folder, gm.watch(work.model, work.optimizer, record=Path(folder) / "run"):
            train()
    else:
        train()
    print(_peak_kib())


def _peak_kib() -> int:
    # On Linux ru_maxrss begins with the peak of the process that started this one; the status file's does not.
    status = Path("/proc/self/status")
    if status.exists():
        return int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def memory_table(script: Path, threads: int | None, repeats: int = 3) -> dict[str, float]:
    """Print by how much watching raises the process's peak memory."""
    peaks: dict[str, list[float]] = {"plain": [], "watched": []}
    more = [] if threads is None else ["--threads", str(threads)]
    for _ in range(repeats):
        for way, values in peaks.items():
            command = [sys.executable, str(script), "--memory-child", way, *more]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            values.append(float(shown.split()[-1]) / 1024)
    middle = {way: statistics.median(values) for way, values in peaks.items()}
    print("\n### Peak memory of the transformer's process (gradmedic imported in both)\n")
    added = middle["watched"] - middle["plain"]
    print(f"plain {middle['plain']:.0f} MiB, watched {middle['watched']:.0f} MiB: {added:+.1f} MiB")
    return middle
