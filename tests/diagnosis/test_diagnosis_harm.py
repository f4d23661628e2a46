"""Harm where several optimizers step: each by its own loss, or one loss that they share."""

from __future__ import annotations

import math

import pytest
import torch
from diagnosis_frames import FakeRun, Recorder, facts_event, frames
from torch import nn

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.harm import assess
from gradmedic.diagnosis.loss import LossTracker
from gradmedic.facts import Facts


def summary(losses):
    tracker = LossTracker()
    for step, loss in enumerate(losses):
        tracker.update(loss, step)
    return tracker.summary()


@pytest.mark.parametrize(
    ("losses", "phrase"),
    [
        ([40.0], "@harm_early"),
        ([40.0 * 0.9**k for k in range(100)], "@harm_falling"),
        ([1e-5] * 100, "@harm_none"),
        ([2.0] * 100, "@harm_not_falling"),
    ],
)
def test_what_is_said_of_a_loss(losses, phrase):
    """An absurd first loss is no harmless one: before it has had time to fall nothing is said of it."""
    assert assess(summary(losses), nonfinite_step=None, several=False).phrase == phrase


def gan(rate: float, steps: int) -> FakeRun:
    """A GAN on a ring; at a thousand times its rate losses explode within a few steps."""
    torch.manual_seed(0)
    g = nn.Sequential(nn.Linear(4, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
    d = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    og, od = (torch.optim.Adam(net.parameters(), rate, betas=(0.5, 0.99)) for net in (g, d))
    recorder = Recorder({"G": g, "D": d}, {"og": og, "od": od})
    bce = nn.functional.binary_cross_entropy_with_logits
    for _ in range(steps):
        angle = 2 * math.pi * torch.rand(64, 1)
        real, fake = torch.cat([angle.cos(), angle.sin()], 1), g(torch.randn(64, 4))
        od.zero_grad()
        loss = bce(d(real), torch.ones(64, 1)) + bce(d(fake.detach()), torch.zeros(64, 1))
        loss.backward()
        recorder.step(loss, "od")
        og.zero_grad()
        loss = bce(d(fake), torch.ones(64, 1))
        loss.backward()
        recorder.step(loss, "og")
    return recorder.run


def test_gan_that_explodes_is_harmed_by_its_own_loss():
    found = diagnose(gan(1.0, 60))
    assert {(f.code, f.severity) for f in found} == {("GM401", "error")}
    assert [f for f in diagnose(gan(1e-3, 60)) if f.severity != "info"] == []


@pytest.mark.parametrize(
    "losses",
    [
        [0.69, 0.2, 4.0, 0.1, 11.0, 0.3] * 20,  # a generator against a winning discriminator
        [0.001 * 1.1**step for step in range(130)],  # a Wasserstein critic: from next to nothing to 240
        [-0.5 - step for step in range(100)],
        [900.0, 400.0, 30000.0, 200000.0] * 10,  # in sums over the batch
    ],
)
def test_losses_that_rise_and_fall_against_each_other_are_no_harm(losses):
    assert not assess(summary(losses), nonfinite_step=None, several=True)


@pytest.mark.parametrize("start", [0.0, 1.3, -2.0, 50.0])
def test_three_orders_of_magnitude_are_harm(start):
    losses = [start] * 5 + [3e3 * max(1.0, abs(start))] * 3
    harm = assess(summary(losses), nonfinite_step=None, several=True)
    assert (harm.reason, harm.step) == ("diverged", 6)  # the median of the last three


def shared(losses, norms) -> FakeRun:
    """Two optimizers that step after one backward pass: their frames carry the same loss."""
    pairs = zip(frames(losses, norms, optimizer="muon"), frames(losses, norms, optimizer="adamw"), strict=True)
    return FakeRun([frame for pair in pairs for frame in pair], [facts_event(Facts())])


def test_one_loss_of_two_optimizers_is_judged_like_one():
    losses = [2.0 - 0.01 * i for i in range(60)] + [2.0 * 1.6**i for i in range(10)]
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)] + [3.0**i for i in range(10)]
    assert {f.code for f in diagnose(shared(losses, norms))} == {"GM302"}
    other = shared(losses, norms)
    for frame in other.recorded[1::2]:
        frame.loss = 1.0 + 0.001 * frame.step  # a loss of its own
    assert diagnose(other) == []
