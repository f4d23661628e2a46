"""Sick runs, really trained: the fault comes out on top."""

from __future__ import annotations

import math

import pytest
import torch
from diagnosis_frames import digits, mlp, train
from torch import nn

import gradmedic as gm
from gradmedic.diagnosis import diagnose


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


@pytest.mark.parametrize("lr", [1.0, 10.0, 100.0])
def test_learning_rate_too_high(lr):
    model = mlp(3)
    found = diagnose(train(model, torch.optim.SGD(model.parameters(), lr, momentum=0.9), digits(), 100))
    assert found[0].code == "GM401"
    assert found[0].step <= 3
    assert not {f.code for f in found} & {"GM302", "GM201"}  # folded, not beside it


def test_regression_that_diverges_to_nan():
    """lr beyond 2 / curvature on a linear model: the loss grows until it overflows."""
    model = nn.Sequential(nn.Linear(64, 1))
    draw = digits()

    def batch(step):
        x, y = draw(step)
        return x, y.float()[:, None]

    run = train(model, torch.optim.SGD(model.parameters(), 1.0), batch, 100, criterion=nn.functional.mse_loss)
    assert not math.isfinite(run.recorded[-1].loss)
    found = diagnose(run)
    assert found[0].code in ("GM401", "GM302")
    assert found[0].severity == "error"
    assert "GM201" in [f.code for f in found[0].folded]


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.Adam(p, 1e-3)])
def test_twenty_sigmoid_layers_vanish(make):
    model = mlp(20, activation=nn.Sigmoid, gain=1.0)
    found = diagnose(train(model, make(model.parameters()), digits(), 80))
    assert [f.code for f in found] == ["GM301"]
    assert found[0].severity == "error"
    assert found[0].where[0] == "0.bias"  # the first layer
    assert 0.1 < found[0].params["per_layer"] < 0.35  # sigmoid' <= 1/4
    assert found[0].remedies[0].text.startswith("If hidden layers have sigmoid or tanh")  # no modules were sampled


@pytest.mark.parametrize(("kind", "says"), [(nn.Tanh, "instead of tanh"), (nn.GELU, "activation (Gelu) is not")])
def test_the_remedy_for_vanishing_gradients_speaks_of_the_activations_that_are_there(kind, says):
    """A chain of layers whose weights begin at a third of what keeps the signal, whatever lies between them."""
    model = mlp(20, activation=kind, gain=0.3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    draw = digits()
    with gm.watch(model, optimizer, rules=["GM301"]) as monitor:
        for step in range(60):
            x, y = draw(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    (found,) = monitor.diagnose()
    said = " ".join(remedy.text for remedy in found.remedies)
    assert says in said
    assert "sigmoid" not in said


def test_thirty_layers_of_half_he_vanish_although_weight_gradients_are_level():
    model = mlp(30, gain=0.5)
    found = diagnose(train(model, torch.optim.SGD(model.parameters(), 0.1), digits(), 60))
    assert [f.code for f in found] == ["GM301"]
    assert found[0].params["per_layer"] == pytest.approx(0.5, abs=0.1)


def test_thirty_layers_of_twice_he_explode():
    model = mlp(30, gain=2.0)
    found = diagnose(train(model, torch.optim.SGD(model.parameters(), 0.1), digits(), 30))
    assert (found[0].code, found[0].variant) == ("GM302", "depth")
    assert found[0].params["per_layer"] == pytest.approx(2.0, abs=0.3)
    assert "GM201" in [f.code for f in found[0].folded]


def test_clip_far_below_the_norm():
    model = mlp(3)
    run = train(model, torch.optim.SGD(model.parameters(), 0.1), digits(), 300, clip=1e-4)
    found = diagnose(run)
    assert [(f.code, f.severity) for f in found] == [("GM403", "warning")]
    assert found[0].remedies[0].action["spec"].startswith("norm(")
