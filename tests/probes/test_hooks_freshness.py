"""Whether gradients were zeroed between steps."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from gradmedic.probes.freshness import Freshness


class Loop:
    """A training loop that tells a `Freshness` what it does."""

    def __init__(self) -> None:
        self.parameters = [nn.Parameter(torch.ones(n)) for n in (1, 2, 3, 50)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.freshness = Freshness()

    def backward(self, among: int = 4) -> None:
        self.freshness.before_backward()
        sum((p * p).sum() for p in self.parameters[:among]).backward()
        self.freshness.after_backward()

    def step(self) -> bool:
        stale = self.freshness.stale
        self.optimizer.step()
        self.freshness.stepped(self.parameters)
        return stale


def test_the_first_step_is_fresh():
    """R51: there is nothing to be stale before the first step."""
    loop = Loop()
    loop.backward()
    assert not loop.step()


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("when", ["after the step", "before the backward"])
def test_zeroing_of_either_kind_is_seen(to_none, when):
    """R51: zero_grad in place or to None, at the end or the beginning of an iteration."""
    loop = Loop()
    for _ in range(5):
        if when == "before the backward":
            loop.optimizer.zero_grad(set_to_none=to_none)
        loop.backward()
        assert not loop.step()
        if when == "after the step":
            loop.optimizer.zero_grad(set_to_none=to_none)


def test_used_gradients_that_stay_are_stale():
    """R51: without zero_grad every step from the second on uses gradients that were used before."""
    loop = Loop()
    results = []
    for _ in range(4):
        loop.backward()
        results.append(loop.step())
    assert results == [False, True, True, True]


@pytest.mark.parametrize("to_none", [True, False])
def test_accumulation_is_not_staleness(to_none):
    """R19: several backward passes to a step are fresh when zeroed once, in front of the first."""
    loop = Loop()
    for _ in range(3):
        for _ in range(4):
            loop.backward()
        assert not loop.step()
        loop.optimizer.zero_grad(set_to_none=to_none)


def test_zeroing_before_a_later_backward_pass_counts():
    """R36: pollution by another network's backward pass (a GAN) is no staleness if it is zeroed later."""
    loop = Loop()
    loop.backward()
    loop.step()
    loop.backward()  # pollution by another loss
    loop.optimizer.zero_grad()
    loop.backward()
    assert not loop.step()


def test_two_steps_on_one_backward_pass_are_no_missing_zero_grad():
    """R51: a step without a backward pass since the last one is something else."""
    loop = Loop()
    loop.backward()
    loop.step()
    assert not loop.freshness.stale
    assert not loop.freshness.backward_since_step


def test_parameters_without_gradients_are_passed_over():
    """R51: sentinels are taken among the parameters that have gradients; without any, nothing is claimed."""
    loop = Loop()
    loop.freshness.stepped(loop.parameters)
    loop.backward(among=2)
    assert not loop.step()
    loop.backward(among=2)
    assert loop.step()


def test_a_pass_that_could_not_be_looked_at_claims_nothing():
    """R76: gradients that another thread may write are not looked at, and nothing is said of them."""
    loop = Loop()
    loop.backward()
    loop.step()
    loop.freshness.unseen()
    assert not loop.freshness.stale
    assert loop.freshness.backward_since_step


def test_nothing_is_kept_alive():
    """R54: parameters and gradients die with the user's references; dead ones are no staleness."""
    import weakref

    loop = Loop()
    loop.backward()
    loop.step()
    held = [weakref.ref(p) for p in loop.parameters] + [weakref.ref(p.grad) for p in loop.parameters]
    freshness = loop.freshness
    del loop
    gc.collect()
    assert [reference() for reference in held] == [None] * 8
    freshness.before_backward()
    freshness.after_backward()
    assert not freshness.stale


def test_inference_tensors_have_no_version():
    """R78: gradients that keep no version counter raise nothing."""
    parameter = nn.Parameter(torch.ones(2))
    with torch.inference_mode():
        gradient = torch.ones(2)
    parameter.grad = gradient
    freshness = Freshness()
    freshness.stepped([parameter])
    freshness.before_backward()
    freshness.after_backward()
    assert freshness.stale
