"""Attention head by head, against the formulas and against the gradient that autograd hands out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from graph_named import probe_of
from torch import nn


class Attention(nn.Module):
    def __init__(self, way: str, heads: int = 3, width: int = 12) -> None:
        super().__init__()
        self.qkv, self.out, self.way, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, 1), way, heads
        with torch.no_grad():  # heads that differ
            self.qkv.weight[: width // heads] *= 6
            self.out.weight[:, : width // heads] *= 5

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        self.logits = (q @ k.transpose(-2, -1)).detach() / math.sqrt(q.shape[-1])
        if self.way == "fused":
            self.made = F.scaled_dot_product_attention(q, k, v)
        else:
            self.made = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        self.made.retain_grad()
        return self.out(self.made.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("way", ["fused", "written"])
def test_heads_are_told_apart(way):
    torch.manual_seed(0)
    model = Attention(way)
    loss = model(torch.randn(4, 10, 12)).square().mean()
    [row] = [row for row in probe_of(model).sample([loss]) if row.what == "attention"]
    assert math.isnan(row.extra["grad_norm.0"])  # no backward pass has come by
    loss.backward()
    weights = model.logits.double().softmax(-1)
    entropy = torch.special.entr(weights).sum(-1)[..., 5:].mean(-1) / math.log(10)
    gradient = model.made.grad.double().transpose(0, 1).flatten(1)
    for head in range(3):
        assert float(row.extra[f"entropy.{head}"]) == pytest.approx(entropy[:, head].mean().item(), rel=1e-3)
        assert float(row.extra[f"max_logit.{head}"]) == pytest.approx(model.logits[:, head].max().item(), rel=1e-4)
        assert float(row.extra[f"grad_norm.{head}"]) == pytest.approx(gradient[head].norm().item(), rel=1e-5)
        assert float(row.extra[f"grad_mean.{head}"]) == pytest.approx(gradient[head].mean().item(), rel=1e-4, abs=1e-9)
    assert "entropy.3" not in row.extra


@pytest.mark.parametrize("way", ["fused", "written"])
def test_looking_changes_no_bit_of_any_gradient(way):
    def gradients(look: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Attention(way)
        loss = model(torch.randn(4, 10, 12)).square().mean()
        if look:
            probe_of(model).sample([loss])
        loss.backward(retain_graph=True)
        loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    for one, other in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(one, other)


def test_more_heads_than_are_told_apart_and_heads_that_cannot_be():
    torch.manual_seed(0)
    many = Attention("fused", heads=24, width=48)
    [row] = [r for r in probe_of(many).sample([many(torch.randn(2, 6, 48)).sum()]) if r.what == "attention"]
    assert "grad_norm.0" not in row.extra
    assert {key for key in row.extra if key.startswith("entropy.")} == {f"entropy.{head}" for head in range(16)}
    merged = nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(2, 6, 12)
    [row] = [r for r in probe_of(merged).sample([merged(x, x, x)[0].sum()]) if r.what == "attention"]
    assert not [key for key in row.extra if "." in key]
