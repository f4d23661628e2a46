"""GM508 at batches that are too easy, or do harm only later; GM310 at attention that is hard from the start."""

from __future__ import annotations

import pytest
import torch
from diagnosis_frames import FakeRun, frames
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm
from gradmedic.diagnosis import Finding
from gradmedic.diagnosis.suppression import fold
from gradmedic.probes.startle import Startle

AT = 210
USUAL = {"distinct": 50.0, "top_share": 0.1}
ODD = {"distinct": 1.0, "top_share": 1.0}


def run_of(loss, norm, odd, *, leaf="ids", usual=None, after=()) -> FakeRun:
    """A level run with one step of this loss, norm and batch."""
    losses = [2.0 + 0.01 * (i % 5) for i in range(AT)] + [loss, *after] + [2.0] * 30
    norms = [1.0 + 0.01 * (i % 3) for i in range(len(losses))]
    norms[AT] = norm
    made = frames(losses, norms)
    for frame in made:
        if frame.step % 20 == 0 or frame.step == AT:
            extra = {"count": 1024.0, "rows": 16.0} | (odd if frame.step == AT else usual or USUAL)
            frame.modules = ({"module": "", "what": "batch", "call": 0, "leaf": leaf, "extra": extra},)
    return FakeRun(made, [])


@pytest.mark.parametrize(
    ("loss", "norm", "odd", "expected"),
    [
        (0.2, 20.0, ODD, [("easy", "warning")]),
        (0.2, 20.0, {"distinct": 45.0, "top_share": 0.12}, []),  # an easy batch like any other
        (0.2, 1.0, ODD, []),  # it moves nothing
        (1.5, 20.0, ODD, []),  # noise
    ],
)
def test_a_batch_that_is_too_easy(loss, norm, odd, expected):
    found = judge(run_of(loss, norm, odd), "GM508")
    assert [(each.variant, each.severity) for each in found] == expected
    assert not found or "fell from 2" in found[0].message


@pytest.mark.parametrize(("after", "severity"), [([2.0] * 9, "info"), ([2.0, 90.0, 90.0, 90.0], "warning")])
def test_large_values_are_a_fault_once_the_run_breaks(after, severity):
    run = run_of(50.0, 90.0, {"max_abs": 900.0}, leaf="values", usual={"max_abs": 3.0}, after=after)
    assert [(each.step, each.severity) for each in judge(run, "GM508")] == [(AT, severity)]


def noticed(values) -> list[int]:
    startle = Startle()
    return [at for at, value in enumerate(values) if startle.notice([torch.tensor(value)])]


def test_losses_far_below_all_others_startle_and_a_fast_fall_does_not():
    level = [2.0 + 0.1 * (i % 5) for i in range(40)]
    assert noticed([*level, 0.2, *level]) == [40]
    assert noticed([*level, 1.8, *level]) == []
    assert noticed([*level, 1e8, *level[:5], 1.1e8, 1.2e8, 1e8, *level]) == [40, 46, 47, 48]
    assert noticed([5.0 * 0.9**i for i in range(60)]) == []


class Attention(nn.Module):
    """Two blocks of attention over the rows of a digit."""

    def __init__(self, scale: float, width: int = 24) -> None:
        super().__init__()
        self.inputs = nn.Linear(8, width)
        self.blocks = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.out = nn.Linear(width, 10)
        with torch.no_grad():
            for block in self.blocks:
                block.in_proj_weight[: 2 * width] *= scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inputs(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            h = norm(x)
            x = x + block(h, h, h, need_weights=False)[0]
        return self.out(x.mean(1))


@pytest.mark.parametrize(("scale", "said"), [(1.0, []), (60.0, [("initial", "warning", 0)])])
def test_attention_that_is_hard_from_the_start(scale, said):
    torch.manual_seed(0)
    model = Attention(scale)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with gm.watch(model, optimizer) as monitor:
        for _ in range(6):
            x = torch.randn(16, 8, 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.randint(0, 10, (16,))).backward()
            optimizer.step()
    found = [f for f in monitor.diagnose() if f.code == "GM310"]
    assert [(f.variant, f.severity, f.step) for f in found] == said


def attention_run(logits, low) -> FakeRun:
    made = frames([3.0 - 0.005 * step for step in range(200)])
    for frame in made[::20]:
        value, share = (logits[0], low[0]) if frame.step == 0 else (logits[1], low[1])
        extra = {"heads": 8.0, "low_heads": share, "max_logit": value, "entropy": 0.5, "unscaled": 0.0}
        frame.modules = ({"module": "a", "what": "attention", "call": 0, "leaf": "0", "extra": extra},)
    return FakeRun(made, [])


@pytest.mark.parametrize(
    ("logits", "low", "severities"),
    [
        ((3e3, 3e3), (1.0, 1.0), ["warning"]),
        ((3e3, 3e3), (0.4, 0.4), ["info"]),  # sinks of a model that was trained before
        ((3e3, 50.0), (1.0, 0.0), []),  # it has softened
        ((200.0, 200.0), (1.0, 1.0), []),
    ],
)
def test_what_counts_as_hard(logits, low, severities):
    assert [f.severity for f in judge(attention_run(logits, low), "GM310")] == severities


class Viewer(nn.Module):
    """Attention over the rows of a digit, written out, whose products are multiplied by a number before the softmax."""

    def __init__(self, factor: float, *, unit: bool = False, small: bool = False, depth: int = 32) -> None:
        super().__init__()
        self.factor, self.unit, self.depth = factor, unit, depth
        self.inputs, self.out = nn.Linear(8, depth), nn.Linear(depth, 10)
        self.norm = nn.LayerNorm(depth)
        self.query, self.key, self.value = (nn.Linear(depth, depth) for _ in range(3))
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=depth**-0.75 if small else depth**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.inputs(x))
        q, k = self.query(x), self.key(x)
        if self.unit:
            q, k = (nn.functional.normalize(each, dim=-1) for each in (q, k))
        return self.out(((q @ k.transpose(-2, -1) * self.factor).softmax(-1) @ self.value(x)).mean(1))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: Viewer(32**0.5), [("multiplied", "warning", 0, ("key",))]),
        (lambda: Viewer(32**-0.5), []),
        (lambda: Viewer(1.0), []),  # not divided, but not hard either
        (lambda: Viewer(1.0, depth=128), [("undivided", "warning", 0, ("key",))]),
        (lambda: Viewer(1.0, depth=128, small=True), []),  # not divided by design: the weights are smaller instead
        (lambda: Viewer(10.0, unit=True), []),
    ],
    ids=["multiplied", "divided", "neither", "undivided", "small", "cosines"],
)
def test_products_that_are_multiplied_where_they_should_be_divided(model, said):
    """By the root of the head's size the wrong way round: the softmax is hard, though the loss falls all the same."""
    torch.manual_seed(0)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    x, y = torch.randn(200, 8, 8), torch.randint(0, 10, (200,))
    with gm.watch(net, optimizer, strict=True) as monitor:
        for step in range(8):
            chosen = slice(25 * step, 25 * step + 25)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
    found = [f for f in monitor.diagnose() if f.code == "GM310"]
    assert [(f.variant, f.severity, f.step, f.where) for f in found] == said
    assert [(f.params["factor"], f.params["depth"]) for f in found] == [(pytest.approx(net.factor), net.depth)] * len(
        said
    )


def test_one_soft_attention_among_those_that_are_not_divided_is_a_model_that_was_trained_before():
    made = frames([3.0 - 0.005 * step for step in range(100)])
    for frame in made[::20]:
        frame.modules = tuple(
            {"module": name, "what": "attention", "call": 0, "leaf": "0", "extra": undivided(entropy)}
            for name, entropy in (("a", 0.1), ("b", 0.5))
        )
    assert judge(FakeRun(made, []), "GM310") == []
    for frame in made[::20]:
        frame.modules = frame.modules[:1]
    assert [f.variant for f in judge(FakeRun(made, []), "GM310")] == ["undivided"]


def undivided(entropy):
    return {
        "heads": 8.0,
        "low_heads": 0.2,
        "max_logit": 40.0,
        "entropy": entropy,
        "factor": 1.0,
        "depth": 64.0,
    }


@pytest.mark.parametrize(("later", "codes"), [(0.1, ["GM310"]), (0.6, [])])
def test_attention_that_softens_takes_it_back(later, codes):
    made = frames([3.0 - 0.005 * step for step in range(200)])
    for frame in made[::20]:
        entropy = 0.1 if frame.step < 60 else later
        extra = {"heads": 8.0, "low_heads": 0.6, "max_logit": 90.0, "entropy": entropy, "factor": 5.0, "depth": 25.0}
        frame.modules = ({"module": "a", "what": "attention", "call": 0, "leaf": "0", "extra": extra},)
    assert [f.code for f in judge(FakeRun(made, []), "GM310")] == codes


@pytest.mark.parametrize(("variant", "listed"), [("undivided", 1), ("multiplied", 1), ("", 2)])
def test_attention_that_begins_hard_explains_a_loss_that_stays_at_that_of_a_constant(variant, listed):
    hard = Finding("GM310", "attention-logits", "warning", 0.7, 0, variant=variant)
    assert len(fold([hard, Finding("GM510", "labels-unrelated", "warning", 0.7, 0)])) == listed
