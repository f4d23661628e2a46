"""GM401: what is said of the rate, how much lower it should be, and when a batch is as likely."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, digits, fact, facts_event, frames, mlp, table, train
from torch import nn

from gradmedic.diagnosis import diagnose
from gradmedic.facts import Facts


def moved(ratios, losses, *, lr=0.1, norms=None) -> FakeRun:
    """One 8 x 8 matrix of norm 4 whose updates are `ratios` of it."""
    known = Facts(parameters={"a.weight": fact("a.weight", (8, 8))})
    made = frames(losses, norms, lr=lr)
    for frame, ratio in zip(made, ratios, strict=True):
        columns = {"norm": [1.0], "update_norm": [4 * ratio], "weight_norm": [4.0], "cosine_prev": [0.0]}
        frame.tensors = table(columns, ["a.weight"])
    return FakeRun(made, [facts_event(known)])


DIVERGED = [2.0] + [2.0 * 50.0**i for i in range(1, 12)]


def test_rate_of_weights_updated_by_hand_is_not_known():
    found = diagnose(moved([0.5] * 12, DIVERGED, lr=None))
    assert found[0].code == "GM401"
    for lang in ("en", "zh"):
        words = diagnose(moved([0.5] * 12, DIVERGED, lr=None), lang=lang)[0]
        assert "?" not in words.message + "".join(remedy.text for remedy in words.remedies)
    assert "learning rate" not in [entry.name for entry in found[0].evidence]
    assert found[0].remedies[0].text == "Lower the learning rate about 50 times."


@pytest.mark.parametrize(("onset", "times", "lower"), [(0.11, 10, 0.01), (0.5, 50, 2e-3), (40.0, 1000, 1e-4)])
def test_remedy_grows_with_the_first_large_step(onset, times, lower):
    found = diagnose(moved([onset] + [900.0] * 11, DIVERGED))
    assert (found[0].params["times"], found[0].params["lower"]) == (times, lower)
    assert found[0].params["ratio"] == 900.0


def test_least_is_a_third():
    losses = [2.0] * 40 + [2.0 * 3.0 ** (i + 1) for i in range(20)]
    found = [f for f in diagnose(moved([0.02] * 60, losses)) if f.code == "GM401"]
    assert (found[0].severity, found[0].params["times"]) == ("warning", 3)


@pytest.mark.parametrize(("rate", "healthy"), [(3.0, 3e-3), (0.3, 3e-3)])
def test_adam_is_brought_back_to_a_rate_that_trains(rate, healthy):
    torch.manual_seed(0)
    model = mlp(3)
    found = diagnose(train(model, torch.optim.Adam(model.parameters(), rate), digits(), 60))
    assert found[0].code == "GM401"
    assert healthy / 10 <= found[0].params["lower"] <= healthy * 3


def regression(factor: float) -> FakeRun:
    """A healthy regression whose batch of step 30 has one row that is `factor` times too large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def batch(step):
        x = torch.randn(32, 8)
        y = x[:, :1].clone()
        if step == 30:
            x[7] *= factor
        return x, y

    return train(model, torch.optim.SGD(model.parameters(), 0.02), batch, 70, criterion=nn.functional.mse_loss)


def test_batch_that_ruins_the_weights_is_named():
    found = diagnose(regression(1e4))
    assert (found[0].code, found[0].variant, found[0].step) == ("GM401", "batch", 30)
    assert "batch" in found[0].remedies[0].text
    assert "step 30" in found[0].remedies[0].text
    assert found[0].confidence <= 0.5


def test_batch_that_overflows_is_no_learning_rate():
    run = regression(1e30)
    assert math.isinf(run.recorded[30].loss)
    found = diagnose(run)
    assert (found[0].code, found[0].step) == ("GM201", 30)
    assert "GM401" not in {f.code for f in [*found, *found[0].folded]}


def test_rate_that_jumps_is_no_batch():
    ratios = [1e-3] * 30 + [0.5] * 10
    losses = [2.0 - 0.01 * i for i in range(30)] + [200.0 * 50**i for i in range(10)]
    assert diagnose(moved(ratios, losses))[0].variant == "batch"
    assert diagnose(moved(ratios, losses, lr=[0.01] * 30 + [1.0] * 10))[0].variant == ""


def test_overflow_out_of_nothing_names_the_batch_of_its_step():
    event = {"kind": "origin", "time": 29.5, "step": 30, "optimizer": "SGD", "class": "loss", "where": ["loss"]}
    losses = [2.0 - 0.01 * i for i in range(30)] + [math.inf] * 3
    for op, first in (("pow", "Look at the batch of step 30"), ("log", "Keep the operation")):
        found = diagnose(FakeRun(frames(losses), [event | {"op": op}]))
        assert found[0].remedies[0].text.startswith(first)
        assert ("batch is as likely" in found[0].message) == (op == "pow")
    grown = [2.0 * 1.5**i for i in range(30)] + [math.inf] * 3
    assert "batch" not in diagnose(FakeRun(frames(grown), [event | {"op": "pow"}]))[0].message


def test_ten_layers_of_three_times_he_under_adam():
    """Activations grow on their way up and gradients on their way down, so that the outputs start at 1e5."""
    torch.manual_seed(0)
    model = mlp(10, gain=3.0)
    run = train(model, torch.optim.Adam(model.parameters(), 1e-3), digits(), 60)
    assert run.recorded[-1].loss < run.recorded[0].loss / 3  # the loss does fall
    found = diagnose(run)
    assert [(f.code, f.variant, f.severity) for f in found] == [("GM302", "depth", "warning")]
    assert found[0].params["growth"] > 1e3
    assert "activations grow" in found[0].message


@pytest.mark.parametrize(("up", "said"), [(1.0, False), (3.0, True)])
def test_gradients_alone_may_grow(up, said):
    """Biases of convolutions before pooling sum over ever more places: 4e3 over nine layers, in good health."""
    names = [f"{layer}.{kind}" for layer in range(9) for kind in ("weight", "bias")]
    shapes = [(16, 16), (16,)] * 9
    known = Facts(
        parameters={n: fact(n, s, order=i) for i, (n, s) in enumerate(zip(names, shapes, strict=True))},
    )
    signal = [2.8 ** (8 - layer) for layer in range(9)]
    norms = list(itertools.chain.from_iterable((s * up**layer, s) for layer, s in enumerate(signal)))
    run = FakeRun(frames(list(np.linspace(2, 1, 30)), tensors=table({"norm": norms}, names)), [facts_event(known)])
    assert [f.code for f in diagnose(run)] == (["GM302"] if said else [])
