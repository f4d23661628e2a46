"""Statistics inside a captured step, and hooks that do nothing while one is captured."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tape import Tape
from torch import nn

import gradmedic as gm
from gradmedic import torch_hooks
from gradmedic.stats import CapturableStats, gradient_stats, transfer

HERE = Path(__file__).parent
TRITON = Path(sys.prefix) / "triton"


def gradients() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(70, 11), torch.randn(5), torch.randn(300).half(), torch.randn(4, 6).t(), torch.zeros(0)]


def assert_same(table, expected, names=("moments", "counts", "log2_hist")) -> None:
    for name in names:
        one, other = getattr(table, name), getattr(expected, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other), name


def expected_of(tensors, histogram=True):
    return gradient_stats(tensors, histogram=histogram, backend="torch")


@pytest.mark.parametrize("every", [1, 2, 3])
def test_replays_write_the_table_when_it_is_due_and_only_then(every):
    tensors = gradients()
    stats = CapturableStats(tensors, histogram=True, every=every)
    address = stats.table.moments.data_ptr()
    assert int(stats.measured) == -1
    with Tape() as tape:
        stats.record()
    due = expected_of(tensors)
    for call in range(1, 8):
        for at, tensor in enumerate(tensors):
            tensor.copy_(torch.randn(tensor.shape) * 10.0**at)
        tape.replay()
        if call % every == 0:
            due = expected_of(tensors)
        assert int(stats.measured) == call - call % every
        assert int(stats.calls) == call + 1
        assert_same(stats.table, due)
    assert stats.table.moments.data_ptr() == address


def test_the_cadence_is_changed_on_the_device():
    tensors = gradients()
    stats = CapturableStats(tensors, every=1000)
    with Tape() as tape:
        stats.record()
    tensors[0].fill_(math.nan)
    tape.replay()
    assert stats.table.nan_count.tolist() == [0] * 5
    stats.every.fill_(1)
    tape.replay()
    assert stats.table.nan_count.tolist() == [770, 0, 0, 0, 0]


@pytest.mark.parametrize("every", [0, -3])
def test_a_cadence_below_one_that_is_filled_in_counts_as_one(every):
    """It lies on the device, where nobody can refuse it; a remainder by 0 is undefined there."""
    tensors = [torch.ones(2)]
    stats = CapturableStats(tensors, every=1000)
    stats.record()
    stats.every.fill_(every)
    for call in (1, 2):
        tensors[0].fill_(float(call))
        stats.record()
        assert (int(stats.measured), float(stats.table.max_abs[0])) == (call, call)


def test_what_is_made_in_inference_mode_records_outside_it():
    tensors = gradients()
    with torch.inference_mode():
        stats = CapturableStats(tensors, histogram=True)
    assert not stats.table.moments.is_inference()
    stats.record()
    assert_same(stats.table, expected_of(tensors))


def test_nothing_is_sent_to_the_device_while_it_is_captured(monkeypatch):
    tensors = gradients()
    stats = CapturableStats(tensors, histogram=True)
    sent = []
    monkeypatch.setattr(transfer, "_sent", lambda values, device: sent.append(values) or values)
    stats.record()
    assert sent == []
    gradient_stats(tensors, backend="torch")
    assert sent


def test_constants_of_other_shapes_are_not_mistaken_for_what_was_kept():
    constants = transfer.Constants()
    here = torch.device("cpu")
    with constants.gathered():
        kept = transfer.to_device(torch.ones(3), here)
    with constants.reused():
        assert transfer.to_device(torch.zeros(3), here) is kept
        with pytest.raises(gm.InputError, match="make it anew"):
            transfer.to_device(torch.zeros(3), here)
    assert transfer.to_device(torch.zeros(3), here).sum() == 0


@pytest.mark.parametrize(
    ("given", "every", "message"),
    [
        ([], 1, "one device, got 0"),
        ([torch.ones(2).to_sparse()], 1, "expected dense tensors"),
        ([torch.ones(2)], 0, "positive integer, got 0"),
        ([torch.ones(2)], True, "positive integer, got True"),
        ([torch.ones(2), None], 1, "tensor 1"),
    ],
)
def test_what_does_not_fit_is_refused(given, every, message):
    with pytest.raises(gm.InputError, match=message):
        CapturableStats(given, every=every)


def test_names_are_kept():
    stats = CapturableStats({"a": torch.tensor([3.0, 4.0])})
    stats.record()
    assert [(row.name, row.norm) for row in stats.table.rows()] == [("a", 5.0)]


@pytest.mark.skipif(not TRITON.is_dir(), reason="Triton is not to be had here")
@pytest.mark.timeout(300)
def test_the_kernels_read_nothing_where_it_is_not_due_and_take_little_memory(tmp_path):
    """For each tensor, the vector that goes home included: 0.25 KiB, with bins 1.25."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(TRITON), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "interpreted_capturable.py")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    calls, *held = done.stdout.splitlines()
    assert calls == "calls 4 sent 1"
    plain, with_bins = (int(line.removeprefix("bytes ")) for line in held)
    assert 0 < plain <= 256
    assert plain < with_bins <= 1280


class Loop:
    """A small loop, and how often our callbacks were called in it."""

    def __init__(self, monkeypatch) -> None:
        self.told: list[str] = []
        tell = torch_hooks._tell
        monkeypatch.setattr(torch_hooks, "_tell", lambda method, *args: self.told.append(method) or tell(method, *args))
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(3, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def test_hooks_are_silent_while_a_stream_is_captured_and_heard_again_afterwards(monkeypatch):
    loop = Loop(monkeypatch)
    with gm.watch(loop.model, loop.optimizer, flow={"0": 1e-3}, transform=gm.clip.norm(1e-3), strict=True) as monitor:
        loop.step()
        assert loop.told
        rows = monitor.run.modules.num_rows
        with monkeypatch.context() as captured:
            captured.setattr(torch.cuda, "is_initialized", lambda: True)
            captured.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            loop.told.clear()
            operations, number = Tape(), torch.ones(())
            with operations:
                loop.step()
                monitor.log(number=number, loss=2.0)
            assert loop.told == []
            assert monitor.steps_seen == 1
        plain = Tape()
        with monitor.paused(), plain:
            loop.step()
        # Not one operation of ours is in what was captured.
        assert [each[0] for each in operations.operations] == [each[0] for each in plain.operations]
        loop.step()
    assert monitor.run.series("step").tolist() == [0, 1]
    assert monitor.run.modules.num_rows > rows
    assert all("number" not in frame.logged for frame in monitor.run.frames())


def test_a_build_without_cuda_is_asked_nothing(monkeypatch):
    def fail() -> bool:
        raise AssertionError("a build without CUDA would raise here")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", fail)
    assert not torch_hooks.capturing()
    assert not torch_hooks.passive()


def test_a_replayed_step_is_observed_by_hand():
    """No hook runs in a replay; `observe` takes the gradients that it has left for a step."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    with gm.watch(model, strict=True) as monitor:
        for scale in (1.0, 2.0):
            with torch.no_grad():  # stands for `graph.replay()`
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, scale)
                    parameter.sub_(0.1 * parameter.grad)
            monitor.observe()
    norms = monitor.run.series("grad_norm").tolist()
    assert norms == pytest.approx([math.sqrt(8), 2 * math.sqrt(8)])
