"""Non-finite values behind casts, and derivatives that no loss scale can mend."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmedic as gm
from gradmedic.names import name_parameters
from gradmedic.probes.backward_origin import find_backward_origin
from gradmedic.probes.forward_origin import find_forward_origin
from gradmedic.probes.slopes import may_be_steep, steep_elements
from gradmedic.watching import watch_process

NAN, INF = float("nan"), float("inf")


def namer(model):
    names = name_parameters({"": model})
    return lambda p: (names[id(p)].name, names[id(p)].module) if id(p) in names else None


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def under_autocast(model, x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        return F.cross_entropy(model(x).flatten(0, -2).float(), torch.zeros(x.shape[:-1].numel(), dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 4)])
def test_a_row_of_the_data_is_named_through_the_casts_of_autocast(dtype, shape):
    """R41, R26: the transposed cast of a weight is no operation of the model; the input's row is named."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x[3, ..., 1] = NAN
    model = net()
    found = find_forward_origin([under_autocast(model, x, dtype)], namer(model))
    assert (found.kind, found.where, found.rows, found.op) == ("data", ("input",), (3,), None)
    assert found.shape == shape
    assert found.dtype == str(dtype).removeprefix("torch.")


def test_a_number_too_large_for_half_says_so():
    """R26: the cast of the input leaves no trace in the graph, so that its range is told."""
    x = torch.ones(5, 4)
    x[2, 0] = 1e6
    model = net()
    found = find_forward_origin([under_autocast(model, x, torch.float16)], namer(model))
    assert (found.kind, found.rows, found.inf_count) == ("data", (2,), 1)
    assert "65504" in found.detail


def test_an_operation_between_layers_is_named_under_autocast():
    """R41: passing through casts does not pass over a logarithm."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second((self.first(x) - 9).log())

    model = Net()
    found = find_forward_origin([under_autocast(model, torch.randn(5, 4), torch.float16)], namer(model))
    assert (found.kind, found.where, found.op) == ("forward", ("first",), "log")


def test_an_input_that_asks_for_its_gradient_is_data_and_no_parameter():
    """R41: adversarial training and physics losses need the gradient of the input."""
    x = torch.ones(5, 4)
    x[1, 2] = INF
    x.requires_grad_()
    model = net()
    found = find_forward_origin([model(x).sum()], namer(model))
    assert (found.kind, found.rows) == ("data", (1,))


def test_log1p_is_called_log1p():
    """R41: the node's name has a capital P."""
    model = nn.Linear(4, 3)
    found = find_forward_origin([(model(torch.ones(2, 4)) - 99).log1p().sum()], namer(model))
    assert found.op == "log1p"


STEEP = {
    "sqrt": lambda v: (0 * v).sum().sqrt(),
    "pow": lambda v: (0 * v).sum().pow(0.5),
    "acos": lambda v: (0 * v + 1).acos().sum(),
    "asin": lambda v: (0 * v + 1).asin().sum(),
    "acosh": lambda v: (0 * v + 1).acosh().sum(),
    "log": lambda v: torch.where(v > 9, (0 * v).log(), 0.0).sum(),
    "log1p": lambda v: torch.where(v > 9, (0 * v - 1).log1p(), 0.0).sum(),
    "div": lambda v: torch.where(v > 9, v / (0 * v), 0.0).sum(),
    "reciprocal": lambda v: torch.where(v > 9, (0 * v).reciprocal(), 0.0).sum(),
    "rsqrt": lambda v: torch.where(v > 9, (0 * v).rsqrt(), 0.0).sum(),
    "exp": lambda v: torch.where(v > 9, (v * 1e4).exp(), 0.0).sum(),
    "atanh": lambda v: torch.where(v > 9, (0 * v + 1).atanh(), 0.0).sum(),
}
HARMLESS = {
    "relu in front": lambda v: v.relu().sqrt().sum(),
    "where in front": lambda v: torch.where(v > 0, v, 0.0).sqrt().sum(),
    "norm at zero": lambda v: (0 * v).norm(),
    "std of a constant": lambda v: (0 * v + 1).std(),
    "square": lambda v: (0 * v).pow(2).sum(),
    "sqrt of something": lambda v: (v.abs() + 1).sqrt().sum(),
    "constant divisor": lambda v: (v / 3).sum(),
}


@pytest.mark.parametrize("op", STEEP)
def test_an_infinite_derivative_is_found_before_it_acts(op):
    """R41, R43: what is found finite forward and steep is what makes torch's own gradient non-finite."""
    v = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    loss = STEEP[op](v)
    assert math.isfinite(loss.item())
    found = find_backward_origin([loss], lambda _: ("v", ""))
    assert found is not None
    assert (found.kind, found.op) == ("backward", op)
    assert 1 <= found.nan_count <= 3
    loss.backward()
    assert not v.grad.isfinite().all()


@pytest.mark.parametrize("case", HARMLESS)
def test_a_derivative_that_does_no_harm_is_not_blamed(case):
    """R43: torch's own gradient is finite, and nothing is found."""
    v = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    loss = HARMLESS[case](v)
    assert find_backward_origin([loss], lambda _: ("v", "")) is None
    loss.backward()
    assert v.grad.isfinite().all()


def test_slopes_say_nothing_where_nothing_was_saved():
    """R78: a node without what is needed raises nothing."""
    node = (torch.ones(2, requires_grad=True) / 0.0).grad_fn
    assert may_be_steep(node)
    assert steep_elements(node, {}) is None


def train_in_half(extra, *, init_scale=2.0**12, steps=40, start=20):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step in range(steps):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            loss = F.mse_loss(out.float(), x[:, :1] * 0.5)
            if step >= start:
                loss = loss + extra(out)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return monitor


@pytest.mark.parametrize("start", [0, 20])
def test_sqrt_at_zero_under_a_loss_scale_is_told_as_what_it_is(start):
    """R21, R41: the scaler skips every step and halves its scale for nothing; the root is the derivative."""
    monitor = train_in_half(lambda out: (0 * out.float()).sum().sqrt(), start=start)
    top = monitor.diagnose()[0]
    assert (top.code, top.variant, top.step, top.where) == ("GM201", "backward", start, ("loss",))
    assert top.params["op"] == "sqrt"
    assert [event["op"] for event in monitor.run.events if event["kind"] == "origin"] == ["sqrt"]


def test_a_scale_that_is_only_too_high_is_no_origin():
    """R21: calibration skips steps for overflow; nothing is blamed for it, steep places that are masked included."""
    monitor = train_in_half(lambda out: (out.float() * 0).relu().sqrt().sum(), init_scale=2.0**40, start=0)
    skipped = [frame.step for frame in monitor.run.frames() if frame.skipped]
    assert skipped[:3] == [0, 1, 2]
    assert [event for event in monitor.run.events if event["kind"] == "origin"] == []
    assert "GM201" not in [finding.code for finding in monitor.diagnose()]


def spoilt_training(seed: int, first_bad: int) -> None:
    """Six steps of a model of one's own; row 3 of one batch holds a NaN, and so does every loss from there on."""
    torch.manual_seed(seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(6):
        x = torch.randn(5, 4)
        if step == first_bad:
            x[3, 1] = NAN
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.tensor([0, 1, 2, 0, 1])).backward()
        optimizer.step()


@pytest.mark.parametrize("first_bad", [0, 4])
def test_the_origin_of_each_of_two_trainings_is_found(first_bad):
    """A script that trains one model after the other: the second one's NaN has an origin of its own."""
    with watch_process(record=None, strict=True) as monitor:
        spoilt_training(0, 4)
        spoilt_training(1, first_bad)
    found = {f.optimizer: (f.variant, f.step, f.params["rows"]) for f in monitor.diagnose() if f.code == "GM201"}
    assert [said for _, said in sorted(found.items())] == [("data", 4, ("3",)), ("data", first_bad, ("3",))]
