"""GM402, GM407, GM409: weights that move too little, or the wrong way; and what looks like it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, digits, fact, facts_event, frames, mlp, table, train
from diagnosis_judging import facts_with, judge, severities
from torch import nn

from gradmedic.diagnosis import diagnose

NAMES = [f"{layer}.weight" for layer in range(4)]


def moved(losses, ratios, *, cosine=0.95, weights=4.0, known=None, **common) -> FakeRun:
    """Four 8 x 8 matrices; `ratios` [4] or [steps, 4] of their norm in each step, `weights` [steps] their norm."""
    made = frames(losses, **common)
    steps = len(made)
    ratios = np.broadcast_to(np.asarray(ratios, dtype=float), (steps, 4))
    weights = np.broadcast_to(np.asarray(weights, dtype=float), (steps,))
    for frame, row, weight in zip(made, ratios, weights, strict=True):
        columns = {
            "norm": [1.0] * 4,
            "update_norm": weight * row,
            "weight_norm": [weight] * 4,
            "cosine_prev": [cosine] * 4,
        }
        frame.tensors = table(columns, NAMES)
    known = known or facts_with([fact(name, (8, 8)) for name in NAMES], "SGD")
    return FakeRun(made, [facts_event(known)])


FLAT = [2.3] * 200
FALLING = list(np.linspace(2.3, 0.5, 200))


@pytest.mark.parametrize(
    ("ratio", "cosine", "said"),
    [
        (5e-6, 0.95, True),
        (5e-6, 0.3, True),
        (5e-6, 0.1, False),
        (2e-5, 0.95, False),
        (1e-7, 0.3, True),
        (1e-7, 0.05, False),
    ],
)
def test_too_low_needs_small_steps_and_gradients_that_agree(ratio, cosine, said):
    expected = [("GM402", "warning")] if said else []
    assert severities(moved(FLAT, [ratio] * 4, cosine=cosine), "GM402") == expected


def test_too_low_says_how_much_higher():
    found = judge(moved(FLAT, [5e-6] * 4, lr=1e-4), "GM402")[0]
    assert found.params["times"] == 200
    assert found.params["higher"] == pytest.approx(0.02)
    assert "try 0.02" in found.remedies[0].text
    assert found.remedies[0].action == {"kind": "lr", "factor": 200, "value": 0.02}


@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("warm-up", {"lr": list(np.linspace(1e-6, 1e-2, 200))}),
        ("end of a decay", {"lr": list(np.geomspace(1.0, 1e-5, 200))}),
        ("clipped", {"clipped": True, "clip_scale": 1e-4}),
        ("no rate known", {"lr": None}),
    ],
)
def test_too_low_has_other_reasons(name, common):
    assert severities(moved(FLAT, [5e-6] * 4, **common), "GM402") == []


def test_too_low_is_not_said_of_a_loss_that_falls():
    assert severities(moved(FALLING, [5e-6] * 4), "GM402") == []


def test_too_low_is_taken_back_when_the_loss_falls_after_all():
    slow = [2.3] * 150 + list(np.linspace(2.3, 0.3, 300))
    assert severities(moved(slow[:150], [5e-6] * 4), "GM402") == [("GM402", "warning")]
    assert severities(moved(slow, [5e-6] * 4), "GM402") == []


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, 1e-7, momentum=0.9), lambda p: torch.optim.Adam(p, 1e-8)], ids=["SGD", "Adam"]
)
def test_digits_at_a_rate_that_is_too_low(make):
    model = cnn()
    found = diagnose(train(model, make(model.parameters()), digits(), 110))
    assert [(f.code, f.severity) for f in found] == [("GM402", "warning")]
    assert found[0].params["times"] == 1000


def test_full_batch_at_a_rate_that_is_too_low():
    model, (x, y) = mlp(3), digits(256)(0)
    found = diagnose(train(model, torch.optim.SGD(model.parameters(), 1e-5), lambda _: (x, y), 110))
    assert [f.code for f in found] == ["GM402"]
    assert found[0].confidence >= 0.8


# GM407


def shrinking(rate: float, steps: int = 200) -> np.ndarray:
    return 4.0 * np.exp(-rate * np.arange(steps))


def decayed(losses, update, weights, *, kind="AdamW", norm=1.0, **settings) -> FakeRun:
    """AdamW at lr 0.1: the decay alone takes `0.1 * weight_decay` of the weights in each step."""
    known = facts_with([fact(name, (8, 8)) for name in NAMES], kind, **settings)
    run = moved(losses, [update] * 4, weights=weights, known=known)
    for frame in run.recorded:
        frame.tensors.columns["norm"] = np.full(4, norm)
    return run


def test_decay_that_makes_the_update():
    run = decayed(FLAT, 0.0101, shrinking(0.01), weight_decay=0.1)
    found = judge(run, "GM407")
    assert [(f.code, f.severity) for f in found] == [("GM407", "warning")]
    # |update| = 0.0101 of which 0.01 is decay and, at right angles, 0.00142 the gradient's.
    assert found[0].params["share"] == pytest.approx(100 * 0.01 / (0.01 + (0.0101**2 - 0.01**2) ** 0.5), rel=1e-6)
    assert found[0].params["lost"] == pytest.approx(100 * (1 - np.exp(-0.49)), rel=1e-6)  # step 49
    assert found[0].params["lower"] == pytest.approx(0.01)


def test_decay_through_the_gradient():
    """SGD: decay 0.1 * 4 = 0.4 beside a gradient of 0.1."""
    run = decayed(FLAT, 0.01, shrinking(0.01), kind="SGD", norm=0.1, weight_decay=0.1)
    found = judge(run, "GM407")
    assert [f.code for f in found] == ["GM407"]
    assert 50 < found[0].params["share"] < 80


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("the loss falls", lambda: decayed(FALLING, 0.0101, shrinking(0.01), weight_decay=0.1)),
        ("weights stay", lambda: decayed(FLAT, 0.0101, 4.0, weight_decay=0.1)),
        ("the gradient moves more", lambda: decayed(FLAT, 0.05, shrinking(0.01), weight_decay=0.1)),
        ("no decay", lambda: decayed(FLAT, 0.0101, shrinking(0.01), weight_decay=0.0)),
        ("not known", lambda: decayed(FLAT, 0.0101, shrinking(0.01))),
        ("usual decay", lambda: decayed(FLAT, 1e-3, shrinking(1e-5), weight_decay=1e-4)),
    ],
)
def test_decay_that_does_no_harm(name, run):
    assert severities(run(), "GM407") == []


def test_digits_that_decay_faster_than_they_learn():
    model = mlp(3)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=60.0)
    found = diagnose(train(model, optimizer, digits(), 120))
    assert [f.code for f in found] == ["GM407"]
    assert found[0].params["share"] > 60


def test_usual_weight_decay_before_normalisation_stays_quiet():
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-3)
    assert [f for f in diagnose(train(model, optimizer, digits(), 120)) if f.severity != "info"] == []


def test_decay_in_balance_with_what_is_left():
    """The gradient only offsets the decay, at a tenth of the weights that there were."""
    weights = np.maximum(shrinking(0.1), 0.4)
    run = decayed(FLAT, 2e-3, weights, weight_decay=0.1)
    assert [f.params["share"] for f in judge(run, "GM407")] == [100.0]
    assert severities(decayed(FLAT[:100], 2e-3, np.full(100, 0.4), weight_decay=0.1), "GM407") == []  # began there


# GM409


def test_layer_that_lags_for_200_steps():
    run = moved([2.3] * 260, [1e-3, 1e-3, 1e-3, 5e-7])
    found = judge(run, "GM409")
    assert [(f.code, f.severity, f.where) for f in found] == [("GM409", "warning", ("3.weight",))]
    assert (found[0].params["ratio"], found[0].params["median"]) == (5e-7, 1e-3)
    falling = moved(list(np.linspace(2.3, 0.3, 260)), [1e-3, 1e-3, 1e-3, 5e-7])
    assert [(f.severity, f.variant) for f in judge(falling, "GM409")] == [("info", "note")]


def test_lag_must_last():
    ratios = np.full((400, 4), 1e-3)
    ratios[:, 3] = 5e-7
    ratios[150:170, 3] = 1e-3
    assert severities(moved([2.3] * 340, ratios[:340]), "GM409") == []
    assert severities(moved([2.3] * 400, ratios), "GM409") == [("GM409", "warning")]


@pytest.mark.parametrize(
    ("name", "ratios", "common"),
    [
        ("ten times is no lag", [1e-3, 1e-3, 1e-3, 1e-4], {}),
        ("rates of their own", [1e-3, 1e-3, 1e-3, 5e-7], {"lrs": (0.1, 1e-5)}),
        ("a group at zero", [1e-3, 1e-3, 1e-3, 0.0], {"lrs": (0.1, 0.0)}),
    ],
)
def test_lag_that_is_meant(name, ratios, common):
    assert severities(moved([2.3] * 260, ratios, **common), "GM409") == []


def test_no_lag_without_a_gradient_or_with_a_zero_weight():
    run = moved([2.3] * 260, [1e-3, 1e-3, 1e-3, 5e-7])
    for frame in run.recorded:
        frame.tensors.columns["norm"] = np.array([1.0, 1.0, 1.0, 0.0])
    assert severities(run, "GM409") == []
    embedding = [fact(n, (8, 8), kind="Embedding" if n == NAMES[3] else "Linear") for n in NAMES]
    run = moved([2.3] * 260, [1e-3, 1e-3, 1e-3, 5e-7], known=facts_with(embedding, "SGD"))
    assert severities(run, "GM409") == []


def test_layer_behind_a_tiny_factor_stands_still():
    class Scaled(nn.Module):
        def forward(self, x):
            return 1e-4 * x.detach() + 1e-5 * (x - x.detach()) + 1

    model = nn.Sequential(nn.Linear(64, 32), Scaled(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    for p in model.parameters():
        p.data.mul_(2)
    run = train(model, torch.optim.SGD(model.parameters(), 0.1), digits(), 230)
    found = [f for f in judge(run, "GM409")]
    assert [f.where for f in found] == [("0.weight",)]
