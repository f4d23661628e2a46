"""Clipping the gradient that flows back through modules' outputs."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradmedic as gm

LIMIT = 0.01


class Pair(NamedTuple):
    """A named tuple of outputs."""

    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Record:
    """A dataclass of outputs."""

    hidden: torch.Tensor
    note: str = "text"


_PACK: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "tensor": (lambda h: h, lambda o: o),
    "tuple": (lambda h: (None, h), lambda o: o[1]),
    "named tuple": (lambda h: Pair(h, h), lambda o: o.first),
    "dict": (lambda h: {"h": [h], "n": 3}, lambda o: o["h"][0]),
    "dataclass": (lambda h: Record(h), lambda o: o.hidden),
    "deep": (lambda h: [{"x": (h, [None, 1])}], lambda o: o[0]["x"][0]),
}


class Part(nn.Module):
    """A linear map whose output comes in any structure."""

    def __init__(self, structure: str = "tensor", inplace: bool = False) -> None:
        super().__init__()
        self.map = nn.Linear(5, 5)
        self.structure, self.inplace = structure, inplace

    def forward(self, x: torch.Tensor) -> Any:
        return _PACK[self.structure][0](self.map(x))


class Net(nn.Module):
    """Two parts; the activation after the first may work in place on what it has returned."""

    def __init__(self, structure: str = "tensor", inplace: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.low, self.high = Part(structure), nn.Linear(5, 1)
        self.act = nn.ReLU(inplace=inplace)
        self.structure = structure

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = _PACK[self.structure][1](self.low(x))
        result: torch.Tensor = self.high(self.act(hidden))
        return result


def _inputs() -> torch.Tensor:
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(3))


def _by_hand(net: Net, factor: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients when the gradient at the first part's output is replaced, by the chain rule written out."""
    x = _inputs()
    hidden = net.low.map(x)
    leaf = hidden.detach().requires_grad_()
    loss = (net.high(torch.relu(leaf)) ** 2).sum() * 100
    loss.backward()
    assert leaf.grad is not None
    above = {f"high.{name}": p.grad.clone() for name, p in net.high.named_parameters() if p.grad is not None}
    hidden.backward(factor(leaf.grad))
    below = {f"low.map.{name}": p.grad.clone() for name, p in net.low.map.named_parameters() if p.grad is not None}
    net.zero_grad()
    return {**above, **below}


def _clipped_by_norm(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * min(1.0, LIMIT / (float(gradient.norm()) + 1e-6))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("structure", list(_PACK))
@pytest.mark.parametrize("how", ["norm", "value"])
def test_the_gradient_is_clipped_where_it_flows(structure: str, inplace: bool, how: str) -> None:
    net = Net(structure, inplace)
    limit = LIMIT if how == "norm" else gm.clip.value(LIMIT)
    expected = _by_hand(net, _clipped_by_norm if how == "norm" else lambda g: g.clamp(-LIMIT, LIMIT))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with gm.watch(net, optimizer, flow={"low": limit}, strict=True) as monitor:
        ((net(_inputs()) ** 2).sum() * 100).backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    assert 0 < frame.logged["flow.low"] < 1
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-8)
    assert not any(module._forward_hooks for module in net.modules())


def test_below_the_limit_training_is_bit_identical() -> None:
    results = []
    for flow in (None, {"*": 1e9}):
        net = Net(inplace=True)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        with gm.watch(net, optimizer, flow=flow, strict=True):
            for _ in range(5):
                optimizer.zero_grad()
                (net(_inputs()) ** 2).sum().backward()
                optimizer.step()
        results.append([parameter.detach().clone() for parameter in net.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_clips_once(reentrant: bool) -> None:
    gradients = []
    for checkpointed in (False, True):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        x = _inputs().requires_grad_()
        with gm.watch(net, optimizer, flow={"low": LIMIT}, strict=True):
            output = checkpoint(net, x, use_reentrant=reentrant) if checkpointed else net(x)
            ((output**2).sum() * 100).backward()
            optimizer.step()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


def test_the_limit_is_in_true_units_under_a_loss_scale() -> None:
    gradients = []
    for scale in (1.0, 4096.0):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with gm.watch(net, optimizer, flow={"low": LIMIT}, strict=True):
            scaler.scale((net(_inputs()) ** 2).sum() * 100).backward()
            scaler.step(optimizer)
        gradients.append([parameter.grad for parameter in net.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-8)


def test_what_is_not_finite_stays_what_it_is() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with gm.watch(net, optimizer, flow={"low": LIMIT}, strict=True) as monitor:
        (net(_inputs()) * math.nan).sum().backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    assert frame.nonfinite > 0
    assert frame.logged["flow.low"] == 1.0


def test_nothing_happens_without_gradients_in_vmap_and_on_leaves() -> None:
    class Handing(nn.Module):
        """Returns its own parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight

    net = Net()
    handing = Handing()
    models = {"net": net, "handing": handing}
    optimizer = torch.optim.SGD([*net.parameters(), *handing.parameters()], lr=0.0)
    with gm.watch(models, optimizer, flow={"*": LIMIT}, strict=True):
        with torch.no_grad():
            net(_inputs())
        per_sample = torch.func.vmap(torch.func.grad(lambda w, x: (x @ w).sum()), in_dims=(None, 0))
        assert per_sample(torch.ones(5, 2), _inputs().unsqueeze(1)).shape == (8, 5, 2)
        parameters = dict(net.named_parameters())
        torch.func.grad(lambda p: torch.func.functional_call(net, p, (_inputs(),)).sum())(parameters)
        for _ in range(3):
            handing().sum().backward()
        assert not handing.weight._backward_hooks


def test_a_gradient_penalty_still_has_its_second_derivative() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gm.watch(net, optimizer, flow={"low": LIMIT}, strict=True):
        x = _inputs().requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (gradient.norm() - 1).square().backward()
        optimizer.step()
    assert all(parameter.grad is not None for name, parameter in net.named_parameters() if "weight" in name)


def test_copies_and_pickles_carry_no_hook_of_ours() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gm.watch(net, optimizer, flow={"low": LIMIT}, strict=True):
        for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            ((twin(_inputs()) ** 2).sum() * 100).backward()
            assert float(twin.low.map.weight.grad.norm()) > LIMIT * 10


def test_a_recurrent_net_and_attention_are_clipped_at_every_leaf() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 6, batch_first=True)
    attention = nn.MultiheadAttention(6, 2, batch_first=True)
    models = {"lstm": lstm, "attention": attention}
    optimizer = torch.optim.SGD([*lstm.parameters(), *attention.parameters()], lr=0.0)
    with gm.watch(models, optimizer, flow={"RNN": 1e-3, "MultiheadAttention": 1e-3}, strict=True) as monitor:
        hidden, (last, cell) = lstm(torch.randn(3, 7, 4))
        mixed, _ = attention(hidden, hidden, hidden)
        (mixed.sum() * 50 + last.sum() * 50 + cell.sum() * 50).backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    assert 0 < frame.logged["flow.lstm"] < 0.1
    assert 0 < frame.logged["flow.attention"] < 0.1


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"nowhere": 1.0}, "matches no module"),
        ({"low": -1.0}, "> 0"),
        ({"low": gm.clip.zclip()}, "constant limit"),
        ({"low": gm.clip.norm(1.0, per="tensor")}, "constant limit"),
        ({"low": gm.guard.skip_nonfinite()}, "expected a number"),
        (1.0, "expected a mapping"),
    ],
)
def test_bad_limits_are_refused(flow: Any, words: str) -> None:
    net = Net()
    with pytest.raises(gm.InputError, match=words):
        gm.watch(net, torch.optim.SGD(net.parameters(), lr=0.1), flow=flow)


def test_a_module_inside_a_compiled_one_is_refused_and_the_compiled_one_works() -> None:
    net = Net()
    compiled = torch.compile(net, backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with pytest.raises(gm.InputError, match="inside a compiled module"):
        gm.watch(compiled, optimizer, flow={"low": LIMIT})
    with gm.watch({"net": compiled}, optimizer, flow={"net": LIMIT}, strict=True) as monitor:
        ((compiled(_inputs()) ** 2).sum() * 100).backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    assert 0 < frame.logged["flow.net"] < 1
