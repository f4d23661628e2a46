"""The triton backend: its kernels interpreted and compiled, its tables, and what happens where it fails."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stats_cases import assert_close

from gradmedic.stats import device, reference, triton_backend
from gradmedic.stats.triton_tables import CHUNK, TableCache, build

HERE = Path(__file__).parent
CPU = torch.device("cpu")
#: Where `make` puts Triton: not into the environment itself, where torch would import it in every process.
TRITON = Path(sys.prefix) / "triton"
#: Only x86-64 Linux has wheels of it for which there need be no card.
needs_triton = pytest.mark.skipif(
    not TRITON.is_dir() and importlib.util.find_spec("triton") is None, reason="Triton is not to be had here"
)


def run(*arguments: str, interpret: bool, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0", "TRITON_CACHE_DIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(TRITON), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@needs_triton
@pytest.mark.timeout(300)
def test_kernels_equal_the_reference_in_the_interpreter(tmp_path):
    scripts = [str(HERE / "interpreted_triton.py"), str(HERE / "interpreted_treatment.py")]
    done = run("-m", "pytest", "-p", "no:cacheprovider", *scripts, interpret=True, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 38
    assert "skipped" not in done.stdout


@needs_triton
@pytest.mark.timeout(300)
def test_kernels_compile_for_cards_that_are_not_here(tmp_path):
    done = run(str(HERE / "compiled_triton.py"), interpret=False, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    # Whole blocks are read sixteen bytes at a time where tensors are aligned, and only there.
    assert int(lines["cuda aligned wide loads"]) >= 4
    assert int(lines["cuda unaligned wide loads"]) == 0
    assert all(int(lines[f"cuda {name} wide loads"]) >= 2 for name in ("scale", "units", "limit", "moment"))
    # What keeps up with memory: between lanes nothing is exchanged in the loop, and nothing leaves the registers.
    assert float(lines["cuda plain instructions an element"]) <= 13
    assert float(lines["cuda histogram instructions an element"]) <= 21
    assert int(lines["cuda plain barriers"]) == 0
    assert int(lines["cuda plain registers"]) <= 100
    assert int(lines["cuda spilled bytes"]) == 0
    assert int(lines["atomics"]) == 0
    assert lines["hip"] == "compiled"


def test_chunks_cover_every_element_once():
    kinds = tuple(
        (torch.float32, aligned, n) for aligned, n in [(True, 0), (False, 5), (True, CHUNK), (True, CHUNK + 1)]
    )
    tables = build(kinds, (16, 36, 64, 128), torch.device("cpu"))
    covered = {at: 0 for at in range(len(kinds))}
    for owner, start in zip(tables.owners.tolist(), tables.starts.tolist(), strict=True):
        position = tables.order[owner]
        covered[position] += min(CHUNK, kinds[position][2] - start)
    assert covered == {0: 0, 1: 5, 2: CHUNK, 3: CHUNK + 1}
    assert sum(launch.chunks for launch in tables.launches) == tables.chunks == 4
    assert [launch.aligned for launch in tables.launches] == [False, True]
    assert [(launch.begin, launch.end) for launch in tables.launches] == [(0, 1), (1, 4)]
    assert tables.positions.tolist() == list(tables.order) == [1, 0, 2, 3]


@pytest.mark.parametrize(
    "numels", [[1_000_000_000], [3_333_333] * 300, [64] * 20_000, [8_000_000_000, 5], [0, 0], [124_439_808]]
)
def test_what_chunks_leave_stays_within_eight_mib_and_a_kib_for_each_tensor(numels):
    tables = build(tuple((torch.bfloat16, True, n) for n in numels), tuple(16 * at for at in range(len(numels))), CPU)
    left = tables.chunks * (80 + 256 + 4 + 8) + len(numels) * (6 * 8 + 4 * 8 + 64 * 8 + 3 * 8)
    assert left <= 8 * 2**20 + 1024 * len(numels)
    assert tables.length <= 2**20
    assert tables.most == max(-(-n // tables.length) for n in numels)


def test_a_cache_keeps_a_bounded_number_of_lists():
    cache = TableCache()
    lists = [[torch.zeros(number + 1)] for number in range(20)]
    for each in lists:
        assert cache.of(each).numels.tolist() == [each[0].numel()]
    assert len(cache._known) <= 8


def test_a_kernel_that_fails_is_said_once_and_torch_does_the_work(monkeypatch, caplog):
    broken = device.Kernels()
    monkeypatch.setattr(device, "kernels", broken)
    monkeypatch.setattr(triton_backend, "readable", lambda tensor: True)
    monkeypatch.setattr(triton_backend, "kernels", lambda: object())
    tensors = [torch.randn(5), torch.randn(6)]
    with caplog.at_level(logging.WARNING, logger="gradmedic"):
        for _ in range(3):
            assert_close(device.measure(tensors, True), reference.measure(tensors, True))
    assert len(caplog.records) == 1
    assert "torch operations" in caplog.text
    assert broken.problem is not None
    factors = torch.ones(2, dtype=torch.float64)
    assert broken.treat(tensors, lambda treatment, done: treatment.scale(tensors, factors, done)) == [0, 1]


def test_without_triton_torch_does_the_work_and_nothing_is_said(monkeypatch, caplog):
    missing = device.Kernels()
    monkeypatch.setattr(device, "kernels", missing)
    monkeypatch.setattr(triton_backend, "readable", lambda tensor: True)
    monkeypatch.setattr(triton_backend, "kernels", lambda: None)
    tensors = [torch.randn(5)]
    assert_close(device.measure(tensors, False), reference.measure(tensors, False))
    assert missing.problem is None
    assert not caplog.records


def test_tensors_of_a_cpu_are_left_to_the_other_backends():
    assert not triton_backend.readable(torch.zeros(3))


class Wrapped(torch.Tensor):
    """Stands for a DTensor, whose own address is not that of its elements."""


def test_the_address_of_a_subclass_is_never_given_to_a_kernel(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_backend.readable(torch.zeros(3))
    assert triton_backend.readable(torch.nn.Parameter(torch.zeros(3)))
    assert not triton_backend.readable(torch.zeros(3).as_subclass(Wrapped))
