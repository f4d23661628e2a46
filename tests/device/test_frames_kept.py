"""No frame is lost, and no number of it, when a callback ends the training, or the user logs again."""

from __future__ import annotations

import math
import os
import sys

import pytest
import torch
from late_marks import late_device
from torch import nn

import gradmedic as gm

WAYS = [("auto", 1), ("torch", 1000)]


def train(steps: int, *, nan_at: int, backend: str, every: int, **options):
    """Train under watch, one batch being spoilt; return the monitor, open, as far as training came."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = gm.watch(model, optimizer, backend=backend, every=every, **options)
    try:
        for step in range(steps):
            inputs = torch.randn(8, 4)
            inputs[0, 0] = math.nan if step == nan_at else 1.0
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    except (KeyboardInterrupt, SystemExit):
        pass
    return monitor


@pytest.mark.parametrize(("backend", "every"), WAYS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_callback_that_raises_loses_no_frame(backend, every, error):
    def stop(_finding: object) -> None:
        raise error

    monitor = train(20, nan_at=11, backend=backend, every=every, on_finding=stop)
    monitor.close()
    steps = monitor.run.steps["step"].to_pylist()
    assert steps == list(range(steps[-1] + 1))
    assert steps[-1] >= 11
    assert "GM201" in {finding.code for finding in monitor.diagnose()}


@pytest.mark.parametrize(("backend", "every"), WAYS)
def test_a_callback_that_closes_and_exits_ends_the_record(backend, every, tmp_path):
    held = []

    def stop(_finding: object) -> None:
        for monitor in gm.monitor._alive:
            if monitor.run.path == tmp_path / "run":
                held.append(monitor)
                monitor.close()
        sys.exit(3)

    train(20, nan_at=11, backend=backend, every=every, on_finding=stop, record=tmp_path / "run")
    assert held
    run = gm.open_run(tmp_path / "run")
    steps = run.steps["step"].to_pylist()
    assert steps == list(range(steps[-1] + 1))
    assert steps[-1] >= 11
    assert [event["kind"] for event in run.events if event["kind"] in ("origin", "end")] == ["origin", "end"]
    assert "GM201" in {finding.code for finding in gm.diagnose(run)}


@pytest.mark.parametrize("behind", [0, 3, None])
def test_one_loss_of_values_has_one_origin_whenever_its_frame_arrives(behind):
    expected = train(20, nan_at=11, backend="native", every=1)
    expected.close()
    with late_device(behind):
        monitor = train(20, nan_at=11, backend="torch", every=1000)
        monitor.close()
    origins = [event for event in monitor.run.events if event["kind"] == "origin"]
    assert [event["step"] for event in origins] == [11]
    (live,) = [finding for finding in monitor.findings if finding.code == "GM201"]
    (judged,) = [finding for finding in monitor.diagnose() if finding.code == "GM201"]
    assert (live.step, live.where) == (judged.step, judged.where) == (11, live.where)


@pytest.mark.parametrize("behind", [0, 3, None])
def test_what_is_logged_last_holds(behind):
    """Numbers after tensors, tensors after numbers, before and after the step's own have been sent off."""
    with late_device(behind):
        monitor = train(6, nan_at=-1, backend="torch", every=1)
        ledger = monitor._ledger
        ledger.log({"a": torch.tensor(1.0), "b": 1.0, "loss": torch.tensor(1.0)}, under_way=False)
        ledger.log({"a": 2.0, "b": torch.tensor(2.0), "loss": 2.0}, under_way=False)
        monitor.close()
    frame = monitor.latest
    assert (frame.logged["a"], frame.logged["b"], frame.loss) == (2.0, 2.0, 2.0)


def test_a_number_that_is_logged_after_a_tensor_was_sent_holds():
    with late_device(None):
        monitor = train(6, nan_at=-1, backend="torch", every=1)
        ledger = monitor._ledger
        ledger.log({"a": torch.tensor(1.0)}, under_way=False)
        ledger._transit.send()
        ledger.log({"a": 2.0}, under_way=False)
        monitor.close()
    assert monitor.latest.logged["a"] == 2.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_not_logged_what_its_parent_has():
    monitor = train(3, nan_at=-1, backend="auto", every=1)
    monitor._ledger.log({"parents": 7.0}, under_way=True)
    reader, writer = os.pipe()
    if os.fork() == 0:  # pragma: no cover
        os.write(writer, b"yes" if monitor._ledger._logged else b"no")
        os._exit(0)
    os.wait()
    assert os.read(reader, 8) == b"no"
    assert monitor._ledger._logged == {"parents": 7.0}
    monitor.close()
