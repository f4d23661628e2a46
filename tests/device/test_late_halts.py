"""A breaker whose flag arrives late: no weight changes meanwhile, and the step that tripped it is the one named."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from late_marks import late_device

import gradmedic as gm
from gradmedic.clip.late_halts import ENDING

BAD = 4


class Loop:
    """A small training on the device path; batches at `bad` are 1e5 times too large."""

    def __init__(self, transform: Any, *, fused: bool = True, bad: tuple[int, ...] = (BAD,)) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
        kind = {"fused": True} if fused else {"foreach": True}
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=0.01, **kind) for part in self.model]
        named = {"first": self.optimizers[0], "second": self.optimizers[1]}
        self.monitor = gm.watch(self.model, named, backend="torch", transform=transform, strict=True)
        self.bad, self.step, self.changed = bad, 0, set[int]()

    def make(self, steps: int) -> None:
        for _ in range(steps):
            step, self.step = self.step, self.step + 1
            generator = torch.Generator().manual_seed(step)
            inputs = torch.randn(16, 8, generator=generator) * (1e5 if step in self.bad else 1.0)
            self.model.zero_grad()
            (self.model(inputs) - 1).pow(2).mean().backward()
            before = [parameter.detach().clone() for parameter in self.model.parameters()]
            try:
                for optimizer in self.optimizers:
                    optimizer.step()
            finally:
                if any(not torch.equal(a, b) for a, b in zip(before, self.model.parameters(), strict=True)):
                    self.changed.add(step)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("behind", [0, 2, 9])
def test_nothing_changes_between_trip_and_halt_and_the_step_named_is_the_one_that_tripped(
    behind: int, fused: bool
) -> None:
    with late_device(behind):
        loop = Loop(gm.guard.breaker(50.0), fused=fused)
        with pytest.raises(gm.TrainingHalted, match=f"^step {BAD}: grad_norm above 50"):
            loop.make(25)
        loop.monitor.close()
    assert loop.step > BAD + min(behind, 1)  # the second optimizer's step may know of the first one's
    assert loop.changed == set(range(BAD))
    run = loop.monitor.run
    assert [(event["step"], event["reason"]) for event in run.events if event["kind"] == "halt"] == [
        (BAD, "grad_norm above 50, or not finite")
    ]
    rows = run.steps.to_pylist()
    assert {row["step"] for row in rows if row["skipped"]} == set(range(BAD, max(row["step"] for row in rows) + 1))
    assert {row["skip_reason"] for row in rows if row["step"] > BAD} == ({ENDING} if behind else set())
    assert {row["skip_reason"] for row in rows if row["step"] < BAD} == {None}


def test_a_loop_that_goes_on_after_the_halt_makes_steps_again_and_is_halted_again() -> None:
    with late_device(3):
        loop = Loop(gm.guard.breaker(50.0), bad=(BAD, BAD + 1, 20))
        with pytest.raises(gm.TrainingHalted, match=f"^step {BAD}:"):
            loop.make(25)
        again = loop.step
        # The second optimizer has not stepped where the first was halted, and counts for itself.
        with pytest.raises(gm.TrainingHalted, match=re.compile("^step (19|20):")):
            loop.make(25)
        loop.monitor.close()
    assert loop.changed == {*range(BAD), *range(again, 20)}


def test_a_function_that_is_told_binds_no_other_step() -> None:
    told: list[str] = []
    with late_device(3):
        loop = Loop(gm.guard.breaker(50.0, on_trip=told.append))
        loop.make(12)
        loop.monitor.close()
    assert told
    assert loop.changed == set(range(12)) - {BAD}


def test_a_new_optimizer_does_not_lose_the_flag_of_the_one_before() -> None:
    with late_device(3):
        loop = Loop(gm.guard.breaker(50.0))
        loop.make(BAD + 1)
        loop.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        with pytest.raises(gm.TrainingHalted, match=f"^step {BAD}:"):
            loop.make(20)
        loop.monitor.close()
    assert loop.changed == set(range(BAD))
