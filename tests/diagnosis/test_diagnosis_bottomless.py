"""Losses that run off below zero, and those that are negative for good reasons."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, digits, fact, facts_event, frames
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm
from gradmedic.facts import Facts

STEPS = 400


def run(losses, norms) -> FakeRun:
    facts = Facts(optimizers={"SGD": {"class": "SGD"}})
    facts.parameters["a.weight"] = fact("a.weight")
    return FakeRun(frames(list(losses), list(norms)), [facts_event(facts)])


AT = np.arange(STEPS)
RUNAWAY, GROWING = -1.5 - 0.1 * AT**2.0, 1.0 + 0.2 * AT


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_loss_without_a_floor(lang):
    [found] = judge(run(RUNAWAY, GROWING), "GM504", lang=lang)
    assert (found.severity, found.variant) == ("warning", "unbounded")
    # 1000 * (1 + 1.5) is passed by the median of the last 20 at about sqrt(2500 / 0.1) + 10 steps.
    assert 160 <= found.step <= 180


@pytest.mark.parametrize(
    ("losses", "norms"),
    [
        (RUNAWAY, np.ones(STEPS)),  # a slope: gradients do not grow
        (np.maximum(RUNAWAY, -900.0), GROWING),  # deep, not a thousand times
        (np.maximum(RUNAWAY, -5000.0), np.where(AT < 5, 1.0, 5.0)),  # an evidence bound that levels off
        (-5000.0 * (1 - np.exp(-AT / 40)) - 100, GROWING),  # a sum over pixels, large from the start
        (-RUNAWAY, GROWING),  # diverges upwards: said by others
    ],
    ids=["slope", "shallow", "level", "sum", "up"],
)
def test_losses_that_may_be_negative(losses, norms):
    assert judge(run(losses, norms), "GM504") == []


def density(sign: float) -> list[gm.Finding]:
    """Digits' mean by a Gaussian whose mean and scale are learned; the log-likelihood is written by hand."""
    torch.manual_seed(0)
    batches, model = digits(), nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with gm.watch(model, optimizer, strict=True, rules=("GM504",)) as monitor:
        for step in range(200):
            x, y = batches(step)
            mean, log_scale = model(x).unbind(1)
            scale = log_scale.clamp(-3, 3).exp()
            optimizer.zero_grad()
            (sign * (((y.float() / 4 - mean) / scale).square() / 2 + scale.log()).mean()).backward()
            optimizer.step()
    return monitor.findings


def test_a_likelihood_that_is_lowered():
    assert [(each.code, each.variant, each.severity) for each in density(-1.0)] == [("GM504", "unbounded", "warning")]
    assert density(1.0) == []
