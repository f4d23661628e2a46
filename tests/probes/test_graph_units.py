"""Activations and attention, as the graph shows them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from graph_named import probe_of, rows_of
from torch import nn

from gradmedic.probes.activations import WINDOW, Units


class Functional(nn.Module):
    def __init__(self, activation) -> None:
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(6, 10), nn.Linear(10, 3), activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("activation", "dead"),
    [
        (F.relu, lambda z: z <= 0),
        (lambda z: z.clamp(min=0), lambda z: z <= 0),
        (F.relu6, lambda z: z <= 0),
        (F.gelu, lambda z: F.gelu(z).abs() < 1e-3),
        (F.silu, lambda z: F.silu(z).abs() < 1e-3),
        (F.hardswish, lambda z: z <= -3),
    ],
)
def test_units_that_are_never_active(activation, dead):
    model = Functional(activation)
    with torch.no_grad():
        model.first.bias[:4] = -30.0
    x = torch.randn(40, 6)
    z = model.first(x).detach()
    [(module, numbers)] = rows_of(probe_of(model), model(x).sum(), "activation")
    assert module == "first"
    expected = int(dead(z).all(0).sum())
    assert expected >= 4
    assert (numbers["units"], numbers["inactive_units"], numbers["inactive_now"]) == (10, expected, expected)
    assert (numbers["batches"], numbers["samples"]) == (1, 40)
    if activation is F.relu:
        assert numbers["zero_frac"] == pytest.approx((z <= 0).double().mean().item())


@pytest.mark.parametrize(("activation", "low", "high"), [(torch.tanh, -0.97, 0.97), (torch.sigmoid, 0.015, 0.985)])
def test_saturation(activation, low, high):
    model = Functional(activation)
    with torch.no_grad():
        model.first.weight[:6] *= 100
    x = torch.randn(50, 6)
    y = activation(model.first(x)).detach()
    saturated = (y <= low) | (y >= high)
    [(_, numbers)] = rows_of(probe_of(model), model(x).sum(), "activation")
    assert numbers["saturated_frac"] == pytest.approx(saturated.double().mean().item())
    assert numbers["saturated_units"] == int((saturated.double().mean(0) > 0.9).sum())
    assert numbers["gate"] == 0


def test_hardtanh_saturates_at_its_own_limits():
    model = Functional(lambda z: F.hardtanh(z, -0.2, 0.2))
    x = torch.randn(50, 6)
    [(_, numbers)] = rows_of(probe_of(model), model(x).sum(), "activation")
    assert numbers["saturated_frac"] == pytest.approx((model.first(x).abs() >= 0.2).double().mean().item())


def test_a_gate_is_marked():
    class Gated(Functional):
        def forward(self, x):
            z = self.first(x)
            return self.second(z * z.sigmoid())

    model = Gated(None)
    [(_, numbers)] = rows_of(probe_of(model), model(torch.randn(8, 6)).sum(), "activation")
    assert numbers["gate"] == 1


def test_what_lies_behind_the_last_parameter_is_left_out():
    """The hinge of a loss, and the sigmoid of an output, are flat when all is well."""
    model = Functional(F.relu)
    loss = F.relu(1 - model(torch.randn(8, 6)).sigmoid()).mean()
    assert [module for module, _ in rows_of(probe_of(model), loss, "activation")] == ["first"]


@pytest.mark.parametrize("norm", [False, True])
def test_channels_of_a_convolution_are_its_units(norm):
    layers = [nn.Conv2d(3, 5, 3), *([nn.BatchNorm2d(5)] if norm else []), nn.ReLU(), nn.Conv2d(5, 2, 3)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        (model[1] if norm else model[0]).bias[2] = -100.0
    [(module, numbers)] = rows_of(probe_of(model), model(torch.randn(4, 3, 8, 8)).sum(), "activation")
    assert module == ("1" if norm else "0")
    assert (numbers["units"], numbers["inactive_units"], numbers["samples"]) == (5, 1, 4 * 36)


def test_features_are_units_in_a_transformer_s_mlp():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
    [(_, numbers)] = rows_of(probe_of(model), model(torch.randn(4, 9, 6)).sum(), "activation")
    assert (numbers["units"], numbers["samples"]) == (12, 36)


def test_a_residual_connection_does_not_hide_the_layer_in_front():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)

        def forward(self, x):
            x = F.relu(self.first(x))
            return self.last(F.relu(x + self.second(x)))

    model = Residual()
    rows = rows_of(probe_of(model), model(torch.randn(8, 6)).sum(), "activation")
    assert [module for module, _ in rows] == ["first", "second"]


def test_calls_of_one_module_are_told_apart_and_bounded():
    """R22: a cell that is unrolled is seen in its first four calls."""
    cell, last = nn.Linear(4, 4), nn.Linear(4, 1)
    h = torch.randn(8, 4)
    for _ in range(9):
        h = F.relu(cell(h))
    rows = probe_of(nn.ModuleDict({"cell": cell, "last": last})).sample([last(h).sum()])
    assert [(row.module, row.call) for row in rows if row.what == "activation"] == [("cell", call) for call in range(4)]


def test_units_that_die_late_are_forgotten_within_two_windows():
    units = Units()
    for _ in range(5):
        units.add(torch.tensor([True, True, False]))
    assert int(units.inactive()) == 1
    for _ in range(2 * WINDOW):
        units.add(torch.tensor([True, False, False]))
    assert int(units.inactive()) == 2
    assert WINDOW <= units.batches <= 2 * WINDOW


# -- attention ---------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, way: str, causal: bool = False, gain: float = 1.0, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 1)
        self.way, self.causal, self.heads = way, causal, heads
        with torch.no_grad():
            self.qkv.weight[: 2 * width] *= gain

    def parts(self, x):
        b, t, _ = x.shape
        return (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

    def logits(self, x):
        q, k, _ = self.parts(x)
        made = q @ k.transpose(-2, -1)
        made = made if self.way == "unscaled" else made / math.sqrt(q.shape[-1])
        t = x.shape[1]
        return made.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf) if self.causal else made

    def forward(self, x):
        q, k, v = self.parts(x)
        if self.way == "fused":
            made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        elif self.way == "masked":
            t = x.shape[1]
            mask = torch.zeros(t, t).masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf) if self.causal else None
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            made = self.logits(x).softmax(-1) @ v
        return self.out(made.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", ["fused", "masked", "written", "unscaled"])
@pytest.mark.parametrize("gain", [1.0, 8.0])
def test_logits_and_entropy_of_attention(way, causal, gain):
    """Against the formulas; eight matrices of twelve rows are looked at whole."""
    model = Attention(way, causal, gain)
    x = torch.randn(4, 12, 16)
    [(module, numbers)] = rows_of(probe_of(model), model(x).sum(), "attention")
    logits = model.logits(x).detach().double()
    p = logits.softmax(-1)
    entropy = torch.special.entr(p).sum(-1)[..., 6:].mean(-1) / math.log(12)
    assert module == "qkv"
    assert numbers["max_logit"] == pytest.approx(logits.max().item(), rel=1e-4)
    assert numbers["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-3)
    assert numbers["entropy_min"] == pytest.approx(entropy.min().item(), rel=1e-3, abs=1e-6)
    assert numbers["low_heads"] == pytest.approx((entropy < 0.05).double().mean().item())
    assert numbers["heads"] == 8
    assert numbers["unscaled"] == float(way == "unscaled")
    assert numbers["factor"] == pytest.approx(1.0 if way == "unscaled" else 8**-0.5)
    assert numbers["depth"] == 8


@pytest.mark.parametrize(
    ("scale", "factor"),
    [
        (lambda q, k: (q * 3, k / 2), 1.5),
        (lambda q, k: (q, k), 1.0),
        (lambda q, k: (q / q.norm(dim=-1, keepdim=True), k), math.nan),
    ],
    ids=["both", "neither", "by its norm"],
)
def test_what_queries_and_keys_are_multiplied_by_before_their_product(scale, factor):
    layer = nn.Linear(6, 12)
    q, k = scale(*layer(torch.randn(3, 5, 6)).chunk(2, -1))
    loss = ((q @ k.transpose(-2, -1)).softmax(-1) @ k).sum()
    [(_, numbers)] = rows_of(probe_of(layer), loss, "attention")
    assert numbers["factor"] == pytest.approx(factor, nan_ok=True)


def test_multi_head_attention_module():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    for need in (True, False):
        x = torch.randn(2, 6, 16)
        out = model.self_attn(x, x, x, need_weights=need)[0]
        [(module, numbers)] = rows_of(probe_of(model), out.sum(), "attention")
        assert module == "self_attn"
        assert 0.5 < numbers["entropy"] <= 1
        assert numbers["max_logit"] < 10


def test_long_sequences_are_sampled():
    model = Attention("fused", causal=True)
    x = torch.randn(2, 300, 16)
    [(_, numbers)] = rows_of(probe_of(model), model(x).sum(), "attention")
    assert numbers["max_logit"] <= model.logits(x).max().item() * (1 + 1e-5)
    assert 0.5 < numbers["entropy"] <= 1


def test_a_softmax_that_is_no_attention():
    """Mixture gates and probabilities are no attention."""
    gate, experts = nn.Linear(6, 3), nn.Linear(6, 3)
    x = torch.randn(5, 6)
    out = (gate(x).softmax(-1) * experts(x)).sum()
    assert rows_of(probe_of(nn.ModuleDict({"gate": gate, "experts": experts})), out, "attention") == []
