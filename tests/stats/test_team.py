"""Torch's own threads for the compiled kernel: found where they are, and never waited for where they are not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from gradmedic.stats import gradient_stats, native_available, team
from gradmedic.stats.team import TorchThreads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GNU's entry point is looked for on Linux")


def compute() -> None:
    """Make torch start its threads."""
    torch.randn(400, 400) @ torch.randn(400, 400)


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_the_entry_is_that_of_the_runtime_that_torch_uses(two_threads):
    compute()
    entry = TorchThreads().entry(2)
    with open("/proc/self/maps") as maps:
        owners = [
            line.split()[-1]
            for line in maps
            if int(line.split("-")[0], 16) <= entry < int(line.split()[0].split("-")[1], 16)
        ]
    assert len(owners) == 1
    assert "omp" in os.path.basename(owners[0])


@pytest.mark.parametrize(("wanted", "torchs"), [(1, 2), (2, 3), (1, 1)])
def test_fewer_threads_than_torch_has_are_threads_of_our_own(wanted, torchs, two_threads):
    torch.set_num_threads(torchs)
    compute()
    assert TorchThreads().entry(wanted) == 0


def test_no_runtime_without_gnus_entry_point_is_used(monkeypatch, two_threads):
    compute()
    team._address.cache_clear()
    monkeypatch.setattr(team.torch.__config__, "parallel_info", lambda: "ATen parallel backend: native thread pool")
    try:
        assert TorchThreads().entry(2) == 0
    finally:
        team._address.cache_clear()


def test_threads_that_are_not_there_are_not_waited_for(monkeypatch, two_threads):
    compute()
    monkeypatch.setattr(team.os, "listdir", lambda _: ["1"] * threading.active_count())
    assert TorchThreads().entry(2) == 0


@pytest.mark.skipif(not native_available(), reason="without a kernel nothing asks for threads")
def test_no_thread_is_added_to_those_of_torch(two_threads):
    compute()
    xs = [torch.ones(1 << 20)] * 8
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        gradient_stats(xs, backend="native")
    assert len(os.listdir("/proc/self/task")) == before
    assert torch.get_num_threads() == 2


_FORK = """
import os, signal, torch
torch.set_num_threads(2)
{first}
torch.randn(400, 400) @ torch.randn(400, 400)
xs = [torch.ones(1 << 20)] * 8  # here: torch itself would wait in the child
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    from gradmedic.stats import gradient_stats, team
    {then}
    os._exit(0 if gradient_stats(xs).norm.tolist() == [1024.0] * 8 else 3)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("first", ["", "import gradmedic"], ids=["imported by the child", "imported by the parent"])
@pytest.mark.parametrize("then", ["", "team._native_threads = lambda: 8"], ids=["alone", "beside other threads"])
def test_a_forked_child_does_not_wait_for_threads_of_its_parent(first, then):
    run_python(_FORK.format(first=first, then=then))


def test_a_process_that_was_not_forked_is_told_from_one_that_was():
    code = "import os; from gradmedic.stats.team import is_forked; print(is_forked(), flush=True); pid = os.fork()\n"
    code += "if pid == 0: print(is_forked(), flush=True); os._exit(0)\nos.waitpid(pid, 0)"
    assert run_python(code).split() == ["False", "True"]
