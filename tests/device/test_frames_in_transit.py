"""Frames that arrive steps later: the same record, in the same order, and training is never held up."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from late_marks import late_device
from torch import nn

import gradmedic as gm

#: Columns of the clock, which no two runs share.
CLOCK = {"time", "step_seconds", "overhead_seconds", "process"}


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def batch(step: int, spoilt: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(8, 6, generator=draw), torch.randn(8, 3, generator=draw)
    return (inputs * math.nan if spoilt else inputs), targets


def train(steps, *, spoilt=(), log=False, each=None, **options):
    """Train under watch, and return the monitor, closed, and the model."""
    model, optimizer = make()
    with gm.watch(model, optimizer, backend="torch", strict=True, **options) as monitor:
        for step in range(steps):
            inputs, targets = batch(step, step in spoilt)
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            if log:
                monitor.log(number=step, loss=2 * loss, on_device=3 * loss)
            if each is not None:
                each(step, monitor)
    return monitor, model


def rows_of(monitor) -> tuple[str, str, str, list[str], list[str]]:
    """Everything in a record that the clock has no part in; NaN by its name."""
    run = monitor.run
    tables = []
    for table in (run.steps, run.tensors, run.modules):
        kept = [name for name in table.column_names if name not in CLOCK]
        tables.append(repr(table.select(kept).to_pylist()))
    events = [{key: value for key, value in each.items() if key != "time"} for each in run.events]
    codes = sorted(f"{finding.code} {finding.step}" for finding in monitor.findings)
    return *tables, [repr(each) for each in events if each["kind"] != "facts"], codes


CASES = {
    "plain": {},
    "clip": {"transform": lambda: gm.clip.norm(0.5)},
    "skip": {"transform": lambda: gm.guard.default(), "spoilt": {5, 6}},
    "broken": {"spoilt": {9}},
    "some steps": {"every": 3},
    "few steps": {"every": 7, "transform": lambda: gm.clip.zclip()},
}


def arguments(case: str) -> dict:
    made = {key: value for key, value in CASES[case].items() if key != "transform"}
    made |= {"transform": CASES[case]["transform"]()} if "transform" in CASES[case] else {}
    return made


@functools.cache
def on_time(case: str):
    return train(16, **arguments(case))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("behind", [2, None])
def test_the_record_is_that_of_a_device_that_is_never_behind(case, behind):
    expected, plain = on_time(case)
    with late_device(behind) as device:
        found, late = train(16, **arguments(case))
        assert found.overhead.host_syncs == 0
        assert device.copies > 0
    for one, other in zip(plain.parameters(), late.parameters(), strict=True):
        np.testing.assert_array_equal(one.detach(), other.detach())
    steps, tensors, modules, events, codes = rows_of(found)
    assert (steps, tensors) == rows_of(expected)[:2]
    assert codes == rows_of(expected)[4]
    if "spoilt" not in CASES[case]:  # modules are looked at right after trouble, which is known later
        assert modules == rows_of(expected)[2]
        assert events == rows_of(expected)[3]


def test_training_does_not_wait():
    with late_device(behind=4) as device:
        waits = []
        train(20, transform=gm.guard.default(), each=lambda *_: waits.append(device.waits))
        assert waits == [0] * 20


def test_one_copy_a_step_beside_the_first_ones():
    """Inputs of the first three steps, and flags that end training, travel by themselves; all else is one copy."""
    for options, copies in (({}, 1), ({"transform": gm.clip.norm(1.0)}, 1), ({"transform": gm.guard.default()}, 2)):
        with late_device(behind=2) as device:
            made = []
            train(12, each=lambda *_, made=made, device=device: made.append(device.copies), **options)
        assert np.diff(made)[3:].tolist() == [copies] * 8


def test_steps_that_are_not_recorded_share_a_copy():
    with late_device(behind=1) as device:
        made = []
        train(60, every=1000, modules=None, each=lambda *_: made.append(device.copies))
    assert made[-1] - made[10] <= 7


def test_a_frame_that_is_asked_for_is_waited_for():
    with late_device() as device:
        seen = []
        monitor, _ = train(6, each=lambda step, monitor: seen.append(monitor.latest.step) if step in (2, 5) else None)
        assert seen == [2, 5]
        assert 2 <= monitor.overhead.host_syncs <= device.waits


def test_what_is_logged_joins_its_own_step_wherever_that_is():
    expected, _ = train(12, log=True)
    for behind in (0, 2, None):
        with late_device(behind):
            found, _ = train(12, log=True)
        assert found.run.series("step").tolist() == list(range(12))
        for column in ("loss", "number", "on_device"):
            values = [frame.logged.get(column, frame.loss) for frame in found.run.frames()]
            assert values == [frame.logged.get(column, frame.loss) for frame in expected.run.frames()], column


def test_findings_come_late_with_the_step_that_they_are_of():
    found = []
    with late_device(behind=8):
        model, optimizer = make()
        with gm.watch(model, optimizer, backend="torch", limits=1e-9, strict=True, on_finding=found.append):
            for step in range(9):
                inputs, targets = batch(step)
                optimizer.zero_grad()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
                if step == 2:
                    assert found == []
                if step == 8:
                    assert "GM412" in {finding.code for finding in found}
    assert next(finding.step for finding in found if finding.code == "GM412") == 0


def test_a_breaker_trips_when_its_flag_arrives_and_not_before():
    with late_device(behind=2):
        model, optimizer = make()
        made: list[int] = []

        def go_on() -> None:
            for step in range(10):
                inputs, targets = batch(step)
                optimizer.zero_grad()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
                made.append(step)

        before = [p.detach().clone() for p in model.parameters()]
        with (
            gm.watch(model, optimizer, backend="torch", transform=gm.guard.breaker(1e-9), strict=True) as monitor,
            pytest.raises(gm.TrainingHalted),
        ):
            go_on()
        assert 1 <= len(made) <= 4
        # Steps made in the meantime were none: the flag that was on its way had them skipped on the device.
        assert all(torch.equal(p, former) for p, former in zip(model.parameters(), before, strict=True))
        assert monitor.run.series("step").tolist() == list(range(len(made) + 1))


def test_closing_inside_a_callback_leaves_nothing_behind():
    with late_device(behind=2):
        model, optimizer = make()
        monitor = gm.watch(
            model, optimizer, backend="torch", limits=1e-9, strict=True, on_finding=lambda _: monitor.close("enough")
        )
        for step in range(6):
            inputs, targets = batch(step)
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
    steps = monitor.run.series("step").tolist()
    assert steps == list(range(len(steps)))
    assert 1 <= len(steps) <= 4


def test_asking_from_inside_a_callback_does_not_judge_a_frame_twice():
    with late_device(behind=2):
        seen = []
        model, optimizer = make()
        with gm.watch(
            model,
            optimizer,
            backend="torch",
            limits=1e-9,
            strict=True,
            on_finding=lambda _: seen.append(monitor.latest.step),
        ) as monitor:
            for step in range(6):
                inputs, targets = batch(step)
                optimizer.zero_grad()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
    assert seen[0] == 0
    assert monitor.run.series("step").tolist() == list(range(6))


def test_a_device_that_fails_is_our_own_fault_once_and_training_goes_on(capsys):
    with late_device(behind=2) as device:
        model, optimizer = make()
        with gm.watch(model, optimizer, backend="torch") as monitor:
            for step in range(8):
                device.broken = step >= 4
                inputs, targets = batch(step)
                optimizer.zero_grad()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
    said = capsys.readouterr().err
    assert said.count("own error in 'after_step'") == said.count("'after_step'") == 1
    assert monitor.run.steps.num_rows >= 1


def test_the_end_of_a_short_run_knows_its_inputs():
    """Facts of the first steps travel by themselves, and may arrive after the last step."""
    with late_device():
        monitor, _ = train(2)
        assert monitor.overhead.host_syncs == 0
    facts = [event["facts"] for event in monitor.run.events if event["kind"] == "facts"]
    assert len(facts[-1]["inputs"]) == 2
