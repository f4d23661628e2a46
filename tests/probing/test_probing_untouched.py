"""A probed model is afterwards what it was, to the last bit."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.probing.untouched import untouched


class Net(nn.Module):
    """Batch norm, dropout, and a buffer that is bound anew in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.last(F.dropout(F.relu(self.norm(self.first(x))), 0.3, self.training))


def training(probed: bool, optimizer_of, scheduled: bool = False):
    """Return weights, buffers, optimizer state and random numbers after eight steps."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Net()
    optimizer = optimizer_of(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2) if scheduled else None
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step in range(8):
            x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if probed and step == 3:  # its graph waits for its backward pass
                monitor.probe(lambda x, y: F.cross_entropy(model(x), y), x, y, seconds=0.1)
            loss.backward()
            if probed and step == 5:
                monitor.probe(lambda x, y: F.cross_entropy(model(x), y), x, y, seconds=0.1)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    state = [value for entry in optimizer.state_dict()["state"].values() for value in entry.values()]
    numbers = [torch.rand(3), torch.tensor(random.random()), torch.tensor(np.random.rand())]
    return [*model.state_dict().values(), *state, *numbers], monitor


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scheduled", [False, True])
def test_training_is_bit_identical(name, scheduled):
    plain, _ = training(False, OPTIMIZERS[name], scheduled)
    probed, monitor = training(True, OPTIMIZERS[name], scheduled)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(plain, probed, strict=True))
    assert [frame.step for frame in monitor.run.frames()] == list(range(8))  # its own steps are no steps of the run
    events = [event for event in monitor.run.events if event["kind"] == "probe"]
    assert [event["probe"] for event in events] == ["line", "batch", "input", "future", "overfit"] * 2


def test_everything_comes_back_after_an_exception():
    model = Net().eval()
    model.first.weight.grad = kept = torch.ones_like(model.first.weight)
    before, storage = copy.deepcopy(model.state_dict()), model.first.weight.data_ptr()

    def fail():
        with untouched([model], []) as held:
            assert model.first.weight.grad is None
            assert held.gradients[0] is kept
            model.train()
            model(torch.randn(4, 6))
            model.first.weight.data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.first.weight.data_ptr() == storage
    assert model.first.weight.grad is kept
    assert not model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_bare_tensors_without_a_module():
    weight = torch.randn(4, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    before = weight.detach().clone()
    from gradmedic.watching import watch_process

    monitor = watch_process(record=None, strict=True)
    try:
        for _ in range(2):
            x, y = torch.randn(8, 4), torch.randn(8, 2)
            ((x @ weight - y) ** 2).mean().backward()
            optimizer.step()
        before = weight.detach().clone()
        results = monitor.probe(lambda x, y: ((x @ weight - y) ** 2).mean(), x, y)
    finally:
        monitor.close()
    assert torch.equal(weight, before)
    assert {each.probe: each.verdict for each in results}["line"] == "descends"


def test_what_is_no_loss_is_refused():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gm.watch(model, optimizer) as monitor:
        with pytest.raises(InputError, match="a tensor of one element, got a tensor of shape"):
            monitor.probe(lambda x: model(x), torch.randn(4, 6), only="batch")
        with pytest.raises(InputError, match="only: expected names among line"):
            monitor.probe(lambda: None, only=["lines"])


def test_a_function_that_raises_is_said_and_harms_nothing():
    model = Net()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        results = monitor.probe(lambda x, y: model(x[:, :2]).sum(), torch.randn(4, 6), torch.zeros(4))
    assert results[0].verdict == "failed"
    assert "RuntimeError" in results[0].reason
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
