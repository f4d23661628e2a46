"""Predictions [N, 1] against targets [N], in the forms in which losses are written; and pairs that are meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graph_named import probe_of
from torch import nn

N = 7
pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")

FORMS = {
    "square": lambda p, y: ((p - y) ** 2).mean(),
    "other order": lambda p, y: ((y - p) ** 2).mean(),
    "function": lambda p, y: torch.mean((p - y) ** 2),
    "absolute": lambda p, y: (p - y).abs().mean(),
    "pow": lambda p, y: (p - y).pow(2).sum(),
    "product": lambda p, y: (lambda d: 0.5 * (d * d).mean())(p - y),
    "root": lambda p, y: ((p - y).square().mean() + 1e-8).sqrt(),
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
}


def said(model: nn.Module, loss: torch.Tensor) -> list[bool]:
    """What the fact says; the sampled row has to say the same."""
    probe = probe_of(model)
    facts = [fact.broadcast for fact in probe.loss_facts([loss])]
    rows = [bool(float(row.extra["broadcast"])) for row in probe.sample([loss]) if row.what == "loss"]
    assert facts == rows
    return facts


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_prediction_is_paired_with_every_target(model, name, dtype):
    model = model.to(dtype)
    x, y = torch.randn(N, 3, dtype=dtype), 30 * torch.randn(N, dtype=dtype)
    assert said(model, FORMS[name](model(x), y)) == [True]
    assert said(model, FORMS[name](model(x).squeeze(1), y[:, None])) == [True]
    assert said(model, FORMS[name](model(x), y[:, None])) == [False]
    assert said(model, FORMS[name](model(x).squeeze(1), y)) == [False]


def test_the_terms_are_counted(model):
    x, y = torch.randn(N, 3), torch.randn(N)
    [fact] = probe_of(model).loss_facts([((model(x) - y) ** 2).mean()])
    assert fact.numbers["count"] == N * N


def test_images_without_their_channel():
    torch.manual_seed(0)
    model = nn.Conv2d(3, 1, 1)
    x, y = torch.randn(4, 3, 5, 6), torch.rand(4, 5, 6)
    assert said(model, ((model(x) - y) ** 2).mean()) == [True]
    assert said(model, ((model(x) - y[:, None]) ** 2).mean()) == [False]


MEANT = {
    "a whole target": lambda o, y: ((o - torch.randn(N, N)) ** 2).mean(),
    "several raters": lambda o, y: ((o - torch.randn(N, 4)) ** 2).mean(),
    "one target for all": lambda o, y: ((o - torch.full((N, N), 0.5)) ** 2).mean(),
    "a number": lambda o, y: ((o - 1.0) ** 2).mean(),
    "between predictions": lambda o, y: ((o - o.T) ** 2).mean(),
    "ranks": lambda o, y: ((o[:, 0, None] - o[None, :, 0]).abs() * (y[:, None] > y)).mean(),
    "quantiles": lambda o, y: (
        F.smooth_l1_loss(o[:, 0, None].expand(N, N), y[None].expand(N, N), reduction="none") * torch.rand(N, N)
    ).mean(),
    "pairs by weight": lambda o, y: (torch.rand(N, N) * (o[:, 0, None] - y) ** 2).mean(),
    "two samples": lambda o, y: ((o[:2] - y[:2]) ** 2).mean(),
}


@pytest.mark.parametrize("name", MEANT)
def test_pairs_that_are_meant_are_not_said(model, name):
    x, y = torch.randn(N, 3), torch.randn(N)
    assert not any(said(model, MEANT[name](model(x), y)))


def test_clusters_and_sequences_are_not_said():
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, centres, series = torch.randn(N, 3), torch.randn(N, 4), torch.randn(N, N, 4)
    assert not any(said(model, ((model(x)[:, None] - centres).square().sum(-1).min(1).values).mean()))
    assert not any(said(model, ((model(x) - series) ** 2).mean()))
