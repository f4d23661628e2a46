"""Parameters that come, go, are replaced or cannot be seen are looked up anew at each step."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import gradmedic as gm
from hooks_training import batches, mlp, recorded_norms, sgd, train
from hooks_training import single_thread as single_thread


def facts_of(monitor: gm.Monitor) -> dict[str, dict]:
    return [event["facts"] for event in monitor.run.events if event["kind"] == "facts"][-1]["parameters"]


def test_lazy_modules_bind_at_their_first_step():
    """R55: attaching to a lazy model succeeds, and its first step has its tensors under their names."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        _, norms = train(model, optimizer, batches(4))
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms
    assert facts_of(monitor)["0.weight"]["shape"] == [16, 8]


def replace_weight(model, optimizer):
    with torch.no_grad():
        model[2].weight = nn.Parameter(torch.randn(4, 16))
    return torch.optim.SGD(model.parameters(), lr=0.05)


def replace_in_group(model, optimizer):
    with torch.no_grad():
        new = nn.Parameter(torch.randn(4, 16))
    held = optimizer.param_groups[0]["params"]
    held[[p is model[2].weight for p in held].index(True)] = new
    model[2].weight = new
    return optimizer


def replace_layer(model, optimizer):
    model[2] = nn.Linear(16, 4)
    return torch.optim.SGD(model.parameters(), lr=0.05)


def add_layer(model, optimizer):
    model.append(nn.Linear(4, 4))
    optimizer.add_param_group({"params": model[3].parameters()})
    return optimizer


def assign(model, optimizer):
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
    return torch.optim.SGD(model.parameters(), lr=0.05)


def cast(model, optimizer):
    model.double()
    return optimizer


def load(model, optimizer):
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
    return optimizer


def thaw(model, optimizer):
    model[0].requires_grad_(False)
    return optimizer


CHANGES = [replace_weight, replace_in_group, replace_layer, add_layer, assign, cast, load, thaw]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_parameters_are_looked_up_anew_at_each_step(change):
    """R49: replaced, added, loaded and cast parameters are followed under their names; the old ones are let go."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gm.watch(model, strict=True) as monitor:
        train(model, optimizer, batches(3))
        old = [weakref.ref(p) for p in model.parameters()]
        optimizer.zero_grad()
        optimizer = change(model, optimizer)
        data = [(x.double() if change is cast else x, y) for x, y in batches(6)[3:]]
        _, norms = train(model, optimizer, data)
        gc.collect()
        living = {id(p) for p in model.parameters()}
        assert all(reference() is None or id(reference()) in living for reference in old)
        assert set(monitor.latest.tensors) >= set(norms[-1])
        last = {name: row.norm for name, row in monitor.latest.tensors.items() if row.status == "seen"}
        assert last == pytest.approx(norms[-1])
    assert "GM105" not in {finding.code for finding in monitor.diagnose()}


def test_the_optimizer_that_holds_dead_parameters_is_named():
    """R49: after load_state_dict(assign=True) the old optimizer trains tensors that the model no longer has: GM105."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(2))
        model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
        train(model, optimizer, batches(60))
    assert "GM105" in {finding.code for finding in monitor.diagnose()}


def test_meta_parameters_are_not_visible_and_harmless():
    """R49: parameters on the meta device are passed over: not visible, which is neither unused nor zero."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"real": nn.Linear(8, 4), "ghost": nn.Linear(8, 4, device="meta")})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model["real"], optimizer, batches(25))
    table = monitor.latest.tensors
    assert {name: table[name].status for name in table} == {
        "real.weight": "seen",
        "real.bias": "seen",
        "ghost.weight": "not_visible",
        "ghost.bias": "not_visible",
    }
    assert not [f for f in monitor.diagnose() if any("ghost" in name for name in f.where)]


def test_attributes_of_modules_are_left_alone():
    """R69: user attributes, odd ones too, are neither read nor changed by attaching."""

    class Touchy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.hook = self.name = "mine"

        def __getattr__(self, name):
            if name.startswith(("gradmedic", "_gradmedic")):
                raise AssertionError("something of ours was looked for on the user's module")
            return super().__getattr__(name)

        def forward(self, x):
            return self.layer(x)

    model = Touchy()
    before = set(vars(model))
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True):
        train(model, optimizer, batches(4))
        assert set(vars(model)) == before
        assert set(vars(copy.deepcopy(model))) == before
