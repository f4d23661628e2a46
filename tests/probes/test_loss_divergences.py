"""`kl_div` and `poisson_nll_loss`, told by the operations that they are made of, and what they are given wrongly."""

from __future__ import annotations

import pytest
import torch
from graph_named import probe_of
from torch import nn
from torch.nn import functional as F

import gradmedic as gm


def targets(rows: int = 64, classes: int = 5) -> torch.Tensor:
    return torch.randn(rows, classes).mul(2).softmax(-1)


KL = {
    "log_softmax": (lambda z, t: F.kl_div(z.log_softmax(-1), t, reduction="batchmean"), None),
    "log targets": (lambda z, t: F.kl_div(z.log_softmax(-1), t.log(), reduction="batchmean", log_target=True), None),
    "per element": (lambda z, t: F.kl_div(z.log_softmax(-1), t, reduction="none").sum(-1).mean(), None),
    "softmax": (lambda z, t: F.kl_div(z.softmax(-1), t, reduction="batchmean"), "divergence"),
    "softmax, mean": (lambda z, t: 0.5 * F.kl_div(z.softmax(-1), t, reduction="none").mean(), "divergence"),
    "logits": (lambda z, t: F.kl_div(z, t, reduction="sum"), "raw_divergence"),
    "not log targets": (lambda z, t: F.kl_div(z.log_softmax(-1), t, log_target=True, reduction="sum"), "log_target"),
    "expected score": (lambda z, t: -(z.softmax(-1) * t).sum(-1).mean(), None),
    "dice": (lambda z, t: (1 - z.softmax(-1) * t).sum(-1).mean(), None),
    "squares": (lambda z, t: (t - z.softmax(-1)).pow(2).mean(), None),
    "a slope": (lambda z, t: (torch.ones_like(t) - (t + 0.5) * z).sum(), None),
}
COUNTS = {
    "log rate": (lambda z, t: F.poisson_nll_loss(z, t), None),
    "rate": (lambda z, t: F.poisson_nll_loss(F.softplus(z), t, log_input=False), None),
    "softplus": (lambda z, t: F.poisson_nll_loss(F.softplus(z), t), "rate"),
    "exp, full": (lambda z, t: F.poisson_nll_loss(z.exp(), t, full=True), "rate"),
}


def said(loss, target) -> list[tuple[str, tuple[str, ...]]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, target.shape[1]))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    with gm.watch(net, optimizer, strict=True) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            loss(net(torch.randn(64, 6)), target).backward()
            optimizer.step()
    return [(found.variant, found.where) for found in monitor.diagnose() if found.code == "GM501"]


@pytest.mark.parametrize(("loss", "variant"), KL.values(), ids=KL)
def test_divergences(loss, variant):
    torch.manual_seed(0)
    assert said(loss, targets()) == ([(variant, ("2",))] if variant else [])


@pytest.mark.parametrize(("loss", "variant"), COUNTS.values(), ids=COUNTS)
def test_counts(loss, variant):
    torch.manual_seed(0)
    assert said(loss, torch.poisson(torch.full((64, 1), 2.0))) == ([(variant, ("2",))] if variant else [])


def test_targets_that_are_no_distributions_are_none_of_it():
    """The form alone is that of other losses as well: a constant minus a weighted sum."""
    torch.manual_seed(0)
    assert said(lambda z, t: F.kl_div(z.softmax(-1), t, reduction="sum"), 3 * targets()) == []


def test_what_is_measured():
    layer, target = nn.Linear(4, 3), targets(8, 3)
    target[:2] *= 2
    logits = layer(torch.randn(8, 4))
    [fact] = probe_of(layer).loss_facts([F.kl_div(logits, target, reduction="sum")])
    assert (fact.kind, fact.feed) == ("kl_div", "Addmm")
    assert fact.numbers["target_unit_rows"] == pytest.approx(6 / 8)
    assert fact.numbers["positive_share"] == pytest.approx((logits > 0).float().mean().item())


def test_distillation_is_still_seen_as_cross_entropy():
    """Classes, predictions and entropy are measured at its log_softmax, as before."""
    layer = nn.Linear(4, 3)
    loss = F.kl_div(layer(torch.randn(8, 4)).log_softmax(-1), targets(8, 3), reduction="batchmean")
    assert [row.leaf for row in probe_of(layer).sample([loss]) if row.what == "loss"] == ["soft_cross_entropy"]
