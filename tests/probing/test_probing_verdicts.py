"""What the probes say of trainings whose trouble is known, and the arithmetic behind it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmedic as gm
from gradmedic.probing.line import SCALES, judge
from gradmedic.probing.overfit import overfit
from gradmedic.probing.target import Target
from gradmedic.probing.untouched import untouched


def losses(start: float, change) -> dict[str, float]:
    return {"loss": start} | {f"loss_at_{scale:g}": start + change(scale) for scale in SCALES}


@pytest.mark.parametrize(
    ("change", "slope", "cosine", "verdict"),
    [
        (lambda s: -0.1 * s + 0.001 * s * s, -0.1, 1.0, "descends"),
        (lambda s: -s + 4 * s * s, -1.0, 1.0, "too_far"),
        (lambda s: -1e-5 * s, -1e-5, 1.0, "too_short"),
        (lambda s: 0.0, -1e-9, 1.0, "too_short"),
        (lambda s: 0.1 * s, 0.1, -1.0, "ascends"),
        (lambda s: 0.1 * s, 0.1, 0.3, "uncertain"),  # momentum may lead uphill for one batch
        (lambda s: 0.0, 0.0, 1.0, "uncertain"),
        (lambda s: float("nan") if s >= 1 else -0.01 * s, -0.01, 1.0, "too_far"),
    ],
)
def test_line_verdicts(change, slope, cosine, verdict):
    assert judge(losses(2.0, change), slope=slope, cosine=cosine) == verdict


def test_a_maximising_optimizer_ascends():
    assert judge(losses(2.0, lambda s: 0.1 * s), slope=0.1, cosine=1.0, maximizes=True) == "ascends"


def quadratic():
    """loss = mean (x w - y)^2 with x = 1, y = 0: (w)^2, w = 3; a step of SGD leads to w (1 - 2 lr)."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(3.0)
    return model, torch.ones(4, 1), torch.zeros(4, 1)


@pytest.mark.parametrize("lr", [0.01, 0.3])
def test_the_line_is_that_of_the_optimizer(lr):
    model, x, y = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    with gm.watch(model, optimizer, strict=True) as monitor:
        [line] = monitor.probe(lambda x, y: F.mse_loss(model(x), y), x, y, only="line")
    for scale in SCALES:
        assert line.numbers[f"loss_at_{scale:g}"] == pytest.approx(9 * (1 - 2 * lr * scale) ** 2, rel=1e-4)
    assert line.numbers["slope"] == pytest.approx(-36 * lr, rel=1e-4)  # gradient 2 w = 6, step -6 lr


def test_the_momentum_of_the_optimizer_counts():
    model, x, y = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    with gm.watch(model, optimizer, strict=True) as monitor:
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # buffer 6, w = 2.4
        optimizer.zero_grad()
        [line] = monitor.probe(lambda x, y: F.mse_loss(model(x), y), x, y, only="line")
    # buffer 0.5 * 6 + 4.8 = 7.8
    assert line.numbers["loss_at_1"] == pytest.approx((2.4 - 0.78) ** 2, rel=1e-4)


def probed(loss, x, y, model, **options):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        return {each.probe: each for each in monitor.probe(loss, x, y, **options)}


def test_a_summed_loss_doubles():
    model, x, y = nn.Linear(3, 1), torch.randn(5, 3), torch.randn(5, 1)
    found = probed(lambda x, y: F.mse_loss(model(x), y, reduction="sum"), x, y, model)["batch"]
    assert found.verdict == "sum"
    assert found.numbers["ratio"] == pytest.approx(2.0)
    assert probed(lambda x, y: F.mse_loss(model(x), y), x, y, model)["batch"].verdict == "mean"


def test_an_ignored_input():
    model, x, y = nn.Linear(3, 1), torch.randn(5, 3), torch.randn(5, 1)
    assert probed(lambda x, y: F.mse_loss(model(x * 0), y), x, y, model)["input"].verdict == "ignored"
    assert probed(lambda x, y: F.mse_loss(model(x), y), x, y, model)["input"].verdict == "used"
    alike = probed(lambda x, y: F.mse_loss(model(x * 0), y), x, torch.ones(5, 1), model)["input"]
    assert alike.verdict == "needs"
    assert "differ" in alike.reason


def test_a_batch_that_can_and_one_that_cannot_be_learned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    target = Target(lambda x, y: F.cross_entropy(model(x), y), (x, y), [model])
    with untouched([model], []) as held:
        assert overfit(target, held).verdict == "fits"
    same = Target(target.loss_of, (torch.zeros(40, 4), y), [model])
    with untouched([model], []) as held:
        assert overfit(same, held).verdict == "does_not_fit"


class Convolution(nn.Module):
    """A language model of one convolution, which looks ahead or not."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embedding, self.causal = nn.Embedding(20, 8), causal
        self.conv, self.head = nn.Conv1d(8, 8, 3), nn.Linear(8, 20)

    def forward(self, ids):
        padded = F.pad(self.embedding(ids).transpose(1, 2), (2, 0) if self.causal else (1, 1))
        return self.head(F.relu(self.conv(padded)).transpose(1, 2))


@pytest.mark.parametrize(("causal", "verdict"), [(True, "causal"), (False, "leak")])
def test_a_convolution_that_looks_ahead(causal, verdict):
    torch.manual_seed(0)
    model, text = Convolution(causal), torch.randint(0, 20, (6, 17))
    found = probed(
        lambda x, y: F.cross_entropy(model(x).transpose(1, 2), y), text[:, :-1], text[:, 1:], model, only="future"
    )["future"]
    assert found.verdict == verdict
    assert found.numbers["next_share"] == 1.0
    assert (found.numbers["change"] == 0.0) == causal


def test_a_tagger_may_look_ahead():
    model, text = Convolution(False), torch.randint(0, 20, (6, 16))
    found = probed(lambda x, y: F.cross_entropy(model(x).transpose(1, 2), y), text, text % 7, model, only="future")[
        "future"
    ]
    assert found.verdict == "looks_ahead"
