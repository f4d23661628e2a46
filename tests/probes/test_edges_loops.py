"""Loops at the edges: by hand, with trial passes, with optimizers that are not watched."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmedic as gm
from gradmedic.watching import watch_process

STEPS = 8


def linear():
    torch.manual_seed(0)
    return nn.Linear(8, 1)


def loss_of(model):
    x = torch.randn(32, 8)
    return F.mse_loss(model(x), x[:, :1] * 0.5)


def update(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad


ZEROINGS = {
    "to none": lambda model: model.zero_grad(),
    "in place": lambda model: model.zero_grad(set_to_none=False),
    "one by one": lambda model: [parameter.grad.zero_() for parameter in model.parameters()],
}


def train_by_hand(zero, *, accumulate=1, steps=STEPS):
    model = linear()
    monitor = watch_process(record=None, namespace=lambda: {"model": model}, strict=True)
    for _ in range(steps):
        for _ in range(accumulate):
            loss_of(model).backward()
        update(model)
        zero(model)
    monitor.close()
    return monitor


@pytest.mark.parametrize("how", ZEROINGS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_by_hand_that_zeroes_is_fresh(how, accumulate):
    """R51, R19: any way of zeroing, once for a step, makes the next step fresh."""
    frames = list(train_by_hand(ZEROINGS[how], accumulate=accumulate).run.frames())
    assert [frame.stale_grads for frame in frames] == [False] * STEPS
    assert [frame.micro_batches for frame in frames] == [accumulate] * STEPS


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_by_hand_that_never_zeroes_is_stale_from_its_second_step_on(accumulate):
    """R51: a missing zero_grad is told where no optimizer steps, and comes before what it leads to."""
    monitor = train_by_hand(lambda model: None, accumulate=accumulate, steps=40)
    assert [frame.stale_grads for frame in monitor.run.frames()] == [False] + [True] * 39
    assert monitor.diagnose()[0].code == "GM107"


def test_weights_that_are_made_anew_have_fresh_gradients():
    """R51: a functional update leaves no gradient behind."""
    torch.manual_seed(0)
    weights = {"w": torch.randn(8, 1, requires_grad=True)}
    monitor = watch_process(record=None, namespace=lambda: weights, strict=True)
    for _ in range(STEPS):
        x = torch.randn(32, 8)
        (x @ weights["w"]).pow(2).mean().backward()
        weights["w"] = (weights["w"] - 0.05 * weights["w"].grad).detach().requires_grad_()
    monitor.close()
    assert {frame.stale_grads for frame in monitor.run.frames()} == {False}


WATCHES = {
    "given": lambda model, optimizer: gm.watch(model, optimizer, strict=True),
    "found": lambda model, optimizer: gm.watch(model, strict=True),
    "process": lambda model, optimizer: watch_process(record=None, namespace=lambda: {"m": model}, strict=True),
}


@pytest.mark.parametrize("watch", WATCHES)
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("trial", [0, 3])
def test_a_backward_pass_that_no_step_used_leaves_loss_and_clip_alone(watch, to_none, trial):
    """R40, R52: a trial pass, zeroed, is in no step's loss; a clip between zero_grad and backward clips nothing."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = WATCHES[watch](model, optimizer)
    losses = []
    for step in range(STEPS):
        if step == trial:
            loss_of(model).backward()
        optimizer.zero_grad(set_to_none=to_none)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    monitor.close()
    frames = list(monitor.run.frames())
    assert [frame.loss for frame in frames] == pytest.approx(losses)
    assert [frame.micro_batches for frame in frames] == [1] * STEPS
    assert not any(frame.clipped for frame in frames)
    calls = [event for event in monitor.run.events if event["kind"] == "clip_call"]
    assert {event["placement"] for event in calls} == {"before_backward"}
    assert [(finding.code, finding.variant) for finding in monitor.diagnose()] == [("GM108", "before_backward")]


def test_a_trial_pass_before_a_loop_by_hand_is_in_no_loss():
    """R40: the same without an optimizer."""
    model = linear()
    monitor = watch_process(record=None, namespace=lambda: {"model": model}, strict=True)
    loss_of(model).backward()
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        update(model)
    monitor.close()
    assert [frame.loss for frame in monitor.run.frames()] == pytest.approx(losses)


def test_accumulation_with_a_clip_between_is_not_taken_for_erasure():
    """R19: a clip changes every gradient, and the loss of the micro-batch before it counts."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gm.watch(model, optimizer, strict=True) as monitor:
        total = 0.0
        for _ in range(2):
            loss = loss_of(model)
            loss.backward()
            total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        assert monitor.latest.loss == pytest.approx(total)
        assert monitor.latest.micro_batches == 2


class Beside:
    """A watched model with its optimizer, and another one."""

    def __init__(self, other):
        torch.manual_seed(0)
        self.model, self.other = nn.Linear(8, 1), other
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def run(self, between, before=lambda: None):
        losses = []
        with gm.watch(self.model, self.optimizer, strict=True) as monitor:
            for _ in range(5):
                before()
                self.optimizer.zero_grad()
                loss = loss_of(self.model)
                loss.backward()
                losses.append(loss.item())
                between()
                self.optimizer.step()
        return [frame.loss for frame in monitor.run.frames()], losses


def test_a_copied_optimizer_uses_up_no_loss():
    """R65: its tensors were reached by no backward pass."""
    beside = Beside(None)
    copied = copy.deepcopy(beside.optimizer)
    found, losses = beside.run(copied.step)
    assert found == pytest.approx(losses)


def test_an_optimizer_with_gradients_of_its_own_making_uses_up_no_loss_from_its_second_step_on():
    """R65: gradients that no backward pass has changed; at the first sight of it they count as used."""
    other = torch.nn.Parameter(torch.ones(3))
    stepper = torch.optim.SGD([other], lr=0.1)
    other.grad = torch.ones(3)
    found, losses = Beside(None).run(stepper.step)
    assert found[0] is None
    assert found[1:] == pytest.approx(losses[1:])


@pytest.mark.parametrize("to_none", [True, False])
def test_the_other_network_of_a_gan_uses_up_its_own_loss(to_none):
    """R36: what was run for an optimizer that is not watched is in no watched step."""
    other = nn.Linear(8, 1)
    stepper = torch.optim.SGD(other.parameters(), lr=0.1)

    def other_step():
        stepper.zero_grad(set_to_none=to_none)
        (loss_of(other) + 5).backward()
        stepper.step()

    found, losses = Beside(other).run(lambda: None, before=other_step)
    assert found == pytest.approx(losses)


def test_optimizers_that_are_not_watched_are_not_kept_alive():
    """R54: one optimizer per call, as some searches make them, leaves nothing behind."""
    import gc
    import weakref

    held = []

    def fleeting():
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
        held.extend((weakref.ref(weight), weakref.ref(optimizer)))

    Beside(None).run(fleeting)
    gc.collect()
    assert [reference() for reference in held] == [None] * 10


class SharpnessAware:
    """SAM: weights are moved up the gradient, a second pass is made there, and the base optimizer steps from before."""

    def __init__(self, parameters, rate: float, radius: float = 0.05) -> None:
        self.parameters, self.radius = list(parameters), radius
        self.base = torch.optim.SGD(self.parameters, rate)

    @torch.no_grad()
    def climb(self) -> None:
        self.before = [parameter.clone() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter += self.radius * parameter.grad / parameter.grad.norm()
        self.base.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        for parameter, value in zip(self.parameters, self.before, strict=True):
            parameter.copy_(value)
        self.base.step()
        self.base.zero_grad()


def test_weights_that_move_once_before_an_optimizer_steps_are_not_updated_by_hand():
    """SAM's first pass belongs to its step; what was measured in it does as well."""
    model = linear()
    monitor = watch_process(record=None, namespace=lambda: {"model": model}, strict=True)
    optimizer = SharpnessAware(model.parameters(), 0.05)
    for _ in range(4):
        loss_of(model).backward()
        optimizer.climb()
        loss_of(model).backward()
        optimizer.step()
    monitor.close()
    frames = list(monitor.run.frames())
    assert [(frame.optimizer, frame.step) for frame in frames] == [("optimizer", step) for step in range(4)]
    assert {event["facts"]["boundary"] for event in monitor.run.events if event["kind"] == "facts"} == {"optimizer"}
    losses = [row["call"] for row in frames[0].modules if row["what"] == "loss"]
    assert losses == [row["call"] for row in frames[1].modules if row["what"] == "loss"]
    assert len(losses) == 2


def test_a_single_step_by_hand_is_a_step_all_the_same():
    frames = list(train_by_hand(lambda model: model.zero_grad(), steps=1).run.frames())
    assert [(frame.optimizer, frame.step) for frame in frames] == [("by_hand", 0)]
