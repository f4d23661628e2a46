"""GM305 symmetric-init and GM306 bad-init-scale, on real first steps and on made-up chains."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, frames
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm

FALLING = [2.0 - i / 1000 for i in range(200)]
FLAT = [2.0] * 200


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def network(depth, activation=nn.ReLU, width=32, init=lambda linear: None, bias=True):
    sizes = [64, *[width] * (depth - 1)]
    made: list[nn.Module] = []
    for fan_in in sizes[:-1]:
        made += [nn.Linear(fan_in, width, bias=bias), activation()]
    made.append(nn.Linear(sizes[-1], 10, bias=bias))
    for module in made:
        if isinstance(module, nn.Linear):
            init(module)
    return nn.Sequential(*made)


def constant(value):
    return lambda linear: nn.init.constant_(linear.weight, value)


def normal(std):
    return lambda linear: nn.init.normal_(linear.weight, std=std)


def he(gain):
    return lambda linear: nn.init.normal_(linear.weight, std=gain * math.sqrt(2 / linear.in_features))


def train(model, *rules, steps=4, lr=0.01, optimizer=torch.optim.SGD):
    torch.set_num_threads(1)
    batches, made = digits(), optimizer([p for p in model.parameters() if p.requires_grad], lr)
    with gm.watch(model, made, strict=True, rules=list(rules)) as monitor:
        for step in range(steps):
            x, y = batches(step)
            made.zero_grad()
            F.cross_entropy(model(x), y).backward()
            made.step()
    return monitor.findings


# -- GM305 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_one_number_for_all_weights_is_said_at_once(bias, activation):
    """F11; biases drawn at random do not make it better."""
    [found] = train(network(4, activation, init=constant(0.1), bias=bias), "GM305", steps=1)
    assert (found.variant, found.severity, found.step) == ("constant", "error", 0)
    assert found.where == ("0", "2", "4")


def test_weights_of_zero_throughout():
    [found] = train(network(3, init=constant(0.0), bias=False), "GM305")
    assert (found.variant, found.step, found.where) == ("zero", 0, ("0", "2"))


def test_equal_rows_that_updates_leave_equal():
    def equal_rows(linear):
        with torch.no_grad():
            linear.weight[:] = linear.weight[:1] if linear.in_features == 64 else 0.05
            linear.bias.zero_()

    model = network(2, nn.Tanh, init=equal_rows)
    with torch.no_grad():  # the classes are told apart, the units are not
        model[2].weight[:] = torch.randn(10, 1)
    [found] = train(model, "GM305")
    assert (found.variant, found.step, found.where) == ("", 0, ("0",))


def test_convolutions_and_functions_of_bare_tensors():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 10)
            for module in (self.a, self.b, self.c):
                nn.init.constant_(module.weight, 0.1)

        def forward(self, x):
            return self.c(F.relu(self.b(F.relu(self.a(x.view(-1, 1, 8, 8))))).mean((2, 3)))

    [found] = train(Conv(), "GM305", steps=1)
    assert found.where == ("a", "b")
    weights = nn.ParameterDict({"first": torch.full((64, 16), 0.1), "second": torch.full((16, 10), 0.1)})
    optimizer = torch.optim.SGD(weights.parameters(), 0.1)
    with gm.watch(weights, optimizer, strict=True, rules=["GM305"]) as monitor:
        x, y = digits()(0)
        F.cross_entropy(F.relu(x @ weights["first"]) @ weights["second"], y).backward()
        optimizer.step()
    assert [f.where for f in monitor.findings] == [("first",)]


class Residual(nn.Module):
    """Blocks whose last layers begin at zero, and a head that does."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(3))
        self.head = nn.Linear(32, 10)
        for block in self.blocks:
            nn.init.zeros_(block[2].weight)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class LowRank(nn.Module):
    """LoRA on a frozen network: A at random, B zero."""

    def __init__(self):
        super().__init__()
        self.base = network(3).requires_grad_(False)
        self.a = nn.ParameterList(torch.randn(4, width) / 8 for width in (64, 32))
        self.b = nn.ParameterList(torch.zeros(32, 4) for _ in range(2))

    def forward(self, x):
        for place, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            x = F.relu(self.base[2 * place](x) + x @ a.t() @ b.t())
        return self.base[4](x)


class Controlled(nn.Module):
    """Zero layers side by side, as ControlNet has them: each is told apart by what is behind it."""

    def __init__(self):
        super().__init__()
        self.zeros = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.frozen = network(2).requires_grad_(False)
        for layer in self.zeros:
            nn.init.zeros_(layer.weight)

    def forward(self, x):
        return self.frozen(x + sum(layer(x) for layer in self.zeros))


@pytest.mark.parametrize(
    "model",
    [
        network(4),
        Residual(),
        LowRank(),
        Controlled(),
        nn.Sequential(nn.Linear(64, 10)).apply(lambda m: constant(0.0)(m) if isinstance(m, nn.Linear) else None),
        nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 10)),
    ],
    ids=["random", "residual", "lora", "zero layers in parallel", "regression from zero", "norms of ones"],
)
def test_zeros_and_ones_by_design(model):
    assert train(model, "GM305", lr=0.05) == []


# -- GM306 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        (lambda: network(24, init=he(0.5)), "fading"),  # F02
        (lambda: network(24, init=he(0.5), bias=False), "fading"),
        (lambda: network(24, init=he(2.0)), "growing"),  # F03
        (lambda: network(5, nn.Tanh, init=normal(5.0)), "saturating"),  # F10
        (lambda: network(5, nn.Sigmoid, init=normal(5.0)), "saturating"),
    ],
    ids=["F02", "F02 without biases", "F03", "F10", "sigmoids"],
)
def test_initial_weights_of_the_wrong_scale_are_said_in_the_first_step(model, variant):
    [found] = train(model(), "GM306", steps=1, lr=1e-6)
    assert (found.variant, found.severity, found.step) == (variant, "warning", 0)
    assert found.where[0] == "0"


class Plain(nn.Module):
    """A residual network without normalisation."""

    def __init__(self, gain):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))
        self.head = nn.Linear(8, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                with torch.no_grad():
                    module.weight.mul_(gain)

    def forward(self, x):
        x = F.relu(self.stem(x.view(-1, 1, 8, 8)))
        for first, second in zip(self.convs[::2], self.convs[1::2], strict=True):
            x = F.relu(x + second(F.relu(first(x))))
        return self.head(x.mean((2, 3)))


def test_residual_network_three_times_too_large():
    """F12, with its twin."""
    [found] = train(Plain(3.0), "GM306", steps=1, lr=1e-6)
    assert (found.variant, found.severity) == ("growing", "warning")
    assert train(Plain(1.0), "GM306", steps=60) == []


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        made = [
            module for fan_in in (64, 32, 32, 32) for module in (nn.Linear(fan_in, 32), nn.LayerNorm(32), nn.GELU())
        ]
        self.body, self.head = nn.Sequential(*made), nn.Linear(32, 10)
        for module in made[::3]:
            nn.init.normal_(module.weight, std=5.0)

    def forward(self, x):
        return self.head(self.body(x))


class Scaled(nn.Module):
    """NTK parametrisation: standard normal weights, and a factor in the forward pass."""

    def __init__(self, act):
        super().__init__()
        self.weights, self.act = nn.ParameterList(torch.randn(32, n) for n in (64, 32, 32, 32)), act
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        for weight in self.weights:
            x = self.act((x @ weight.t()) * math.sqrt(2 / weight.shape[1]))
        return self.head(x)


@pytest.mark.parametrize(
    "model",
    [
        lambda: network(6),
        lambda: network(6, nn.Tanh),
        lambda: network(24, init=he(1.0)),
        lambda: network(10, nn.Sigmoid, init=lambda linear: nn.init.xavier_normal_(linear.weight)),
        lambda: network(4, init=normal(0.02)),
        Normed,
        lambda: Scaled(F.relu),
        lambda: Scaled(torch.tanh),
        Residual,
    ],
    ids=["default", "tanh", "deep He", "sigmoids", "0.02", "normalised", "NTK", "NTK tanh", "zero-init residual"],
)
def test_usual_scales(model):
    assert [f for f in train(model(), "GM306", steps=3) if f.severity != "info"] == []


def test_data_of_a_large_scale_are_no_activations():
    """Two towers, the second of which is fed raw values."""

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.top = network(3), network(3), nn.Linear(20, 10)

        def forward(self, x):
            return self.top(torch.cat([self.a(x), self.b(1e4 * x) * 1e-4], 1))

    assert [f for f in train(Towers(), "GM306") if f.variant == "growing" and f.severity != "info"] == []


def weights(inputs, gain=2.0, spreads=None):
    """Rows of a chain of layers with 64 inputs and outputs; the first is fed the data."""
    rows = []
    for place, size in enumerate(inputs):
        extra = {
            "fan_in": 64.0,
            "fan_out": 64.0,
            "outputs": 64.0,
            "inputs": 64.0,
            "hidden": float(place > 0),
            "rms": math.sqrt(gain / 64),
            "row_spread": 1.0,
            "column_spread": 1.0,
            "input_rms": size,
            "input_spread": size if spreads is None else spreads[place],
            "output_rms": math.nan,
            "order": float(place),
        }
        rows.append({"module": f"fc{place}", "what": "weights", "call": 0, "leaf": "weight", "extra": extra})
    return rows


def run_of(rows, curve) -> FakeRun:
    made = frames(curve)
    made[0].modules = tuple(rows)
    return FakeRun(made, [])


@pytest.mark.parametrize(
    ("factor", "layers", "gain", "curve", "expected"),
    [
        (1.2, 8, 2.0, FLAT, None),
        (2.0, 8, 2.0, FLAT, "warning"),
        (2.0, 8, 2.0, FALLING, "info"),
        (4.0, 8, 2.0, FALLING, "warning"),
        (4.0, 8, 2.0, FLAT, "error"),
        (4.0, 3, 2.0, FLAT, None),  # too few layers for a line, and ordinary weights
        (4.0, 4, 18.0, FLAT, "warning"),
        (3.0, 7, 18.0, FALLING, "warning"),
        (0.5, 10, 2.0, FLAT, None),
        (0.3, 10, 2.0, FALLING, "info"),
        (0.3, 10, 2.0, FLAT, "warning"),
        (0.1, 10, 2.0, FALLING, "warning"),
        (0.1, 10, 2.0, FLAT, "error"),
    ],
)
def test_growth_and_harm(factor, layers, gain, curve, expected):
    rows = weights([factor**place for place in range(layers)], gain)
    assert [f.severity for f in judge(run_of(rows, curve), "GM306")] == ([expected] if expected else [])


def test_one_odd_layer_makes_no_line():
    rows = weights([1.0, 1.0, 1.0, 1e3, 1.0, 1.0, 1.0, 1.0])
    assert judge(run_of(rows, FLAT), "GM306") == []


def test_slow_start_is_taken_back():
    slow = [2.0] * 100 + [2.0 - i / 100 for i in range(100)]
    rows = weights([2.0**place for place in range(8)])
    assert [f.severity for f in judge(run_of(rows, slow[:100]), "GM306")] == ["warning"]
    assert [f.severity for f in judge(run_of(rows, slow), "GM306")] == ["info"]


def test_numbers_that_are_missing():
    """Checkpointed layers have no inputs; recurrent ones begin with a state of zeros."""
    bare = [row | {"extra": {"fan_in": 64.0, "rms": 0.1}} for row in weights([1.0] * 6)]
    assert judge(run_of(bare, FLAT), "GM306") == []
    zeros = weights([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    assert judge(run_of(zeros, FLAT), "GM306") == []


def test_bad_scale_explains_what_comes_of_it():
    found = train(network(24, init=he(0.5)), "GM301", "GM306", "GM402", steps=60)
    assert found[0].code == "GM306"
    assert "GM301" in {folded.code for folded in found[0].folded}


@pytest.mark.parametrize(
    ("lr", "optimizer", "expected"), [(0.01, torch.optim.SGD, True), (1e-2, torch.optim.Adam, False)]
)
def test_small_weights_in_a_narrow_network(lr, optimizer, expected):
    """N(0, 0.02) in layers of 32: Adam gets over it, plain SGD does not in this time."""
    model = network(4, init=normal(0.02), bias=False)
    found = train(model, "GM306", steps=60, lr=lr, optimizer=optimizer)
    assert [(f.variant, f.severity) for f in found] == ([("fading", "warning")] if expected else [])
