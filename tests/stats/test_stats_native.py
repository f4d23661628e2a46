"""The compiled extension: threads, determinism, memory; collected where it is built (see conftest.py)."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradmedic.errors import InputError
from gradmedic.stats import gradient_stats, native
from gradmedic.stats.team import TorchThreads


def many() -> list[torch.Tensor]:
    """Return enough work for five threads, in pieces of every size."""
    torch.manual_seed(0)
    xs = [torch.randn(n) for n in (9_000_003, 7, 0, 400_000, *[100] * 3000, 131_072, 131_073)]
    xs[0][17] = float("nan")
    return xs


def identical(a, b) -> bool:
    same = torch.equal(a.moments, b.moments) and torch.equal(a.counts, b.counts)
    return same and torch.equal(a.log2_hist, b.log2_hist)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("torchs", [True, False], ids=["threads of torch", "threads of its own"])
def test_bits_do_not_depend_on_the_number_of_threads(threads, torchs, monkeypatch):
    xs = many()
    monkeypatch.setattr(native, "_threads", lambda: 1)
    first = gradient_stats(xs, histogram=True, backend="native")
    torch.set_num_threads(threads)
    monkeypatch.setattr(native, "_threads", lambda: threads)
    entry = TorchThreads().entry
    monkeypatch.setattr(native._TORCH_THREADS, "entry", lambda wanted: entry(wanted) if torchs else 0)
    torch.randn(300, 300) @ torch.randn(300, 300)
    for _ in range(3):
        assert identical(gradient_stats(xs, histogram=True, backend="native"), first)


def test_no_more_threads_than_torch_uses_nor_than_cores_are_allowed(monkeypatch):
    torch.set_num_threads(1)
    assert native._threads() == 1
    torch.set_num_threads(64)
    monkeypatch.setattr(native.os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    assert native._threads() == 3


def test_callers_on_several_threads_do_not_disturb_each_other():
    xs = many()
    expected = gradient_stats(xs, histogram=True, backend="native")
    results = []
    callers = [
        threading.Thread(target=lambda: results.append(gradient_stats(xs, histogram=True, backend="native")))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 4
    assert all(identical(result, expected) for result in results)


def test_a_forked_child_measures_too():
    run_python(
        "import os, signal, warnings, torch\n"
        "from gradmedic.stats import gradient_stats\n"
        "warnings.simplefilter('ignore')\n"
        "xs = [torch.ones(1 << 20)] * 8\n"
        "assert gradient_stats(xs, backend='native').norm.tolist() == [1024.0] * 8\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(60)\n"
        "    os._exit(0 if gradient_stats(xs, backend='native').norm.tolist() == [1024.0] * 8 else 3)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )


def test_memory_does_not_grow():
    xs = [torch.randn(50) for _ in range(40)] + [torch.randn(300_000), torch.zeros(3, dtype=torch.complex64)]
    resident = []
    for call in range(600):
        gradient_stats(xs, histogram=True).total_norm()
        if call in (99, 599):
            gc.collect()
            with open("/proc/self/statm") as statm:
                resident.append(int(statm.read().split()[1]))
    assert resident[1] - resident[0] < 1024  # pages: 4 MiB, and one leaked table per call would be 10 MiB


def test_references_are_returned():
    x = torch.ones(3)
    before = sys.getrefcount(x), sys.getrefcount(x.dtype), sys.getrefcount(torch.strided)
    for _ in range(200):
        gradient_stats([x], backend="native")
    assert (sys.getrefcount(x), sys.getrefcount(x.dtype), sys.getrefcount(torch.strided)) == before


def test_dense_tensors_without_gaps_are_not_copied():
    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not func.is_view:
                self.largest = max(self.largest, result.numel())
            return result

    xs = [torch.randn(64, 3, 30, 30).to(memory_format=torch.channels_last), torch.randn(100, 70).t()]
    with Sizes() as sizes:
        gradient_stats(xs, backend="native")
    assert sizes.largest < 100


def test_what_it_cannot_read_is_named():
    with pytest.raises(InputError, match=r"torch\.complex64 on cpu; use backend='auto'"):
        gradient_stats([torch.ones(2, dtype=torch.complex64)], backend="native")


def test_it_takes_nothing_but_a_list_and_its_questions():
    with pytest.raises(TypeError, match="list of tensors"):
        native._native.measure((), (), 0, 0, 0, 1, 0)
