"""Watching alone changes nothing: weights, optimizer state and random streams after 50 steps, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradmedic as gm

STEPS = 50
OPTIM = torch.optim


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """Dropout, a normalization with buffers, and matrices only in the middle (Muon takes nothing else)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10, bias=False)
        self.norm = nn.BatchNorm1d(10, affine=False)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(10, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Bag(nn.Module):
    """A model with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 3, sparse=True)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.table((x.abs() * 5).long().clamp(max=19))).mean(1)


Make = Callable[[Any], torch.optim.Optimizer]
Run = tuple[dict[str, torch.Tensor], list[Any], tuple[Any, ...]]


def seeded_model(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return kind()


def train(kind: type[nn.Module], make: Make, watch: Callable[[nn.Module, Any], gm.Monitor] | None) -> Run:
    model = seeded_model(kind)
    optimizer = make(model.parameters())
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    monitor = None if watch is None else watch(model, optimizer)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        scale = random.random() + np.random.rand()  # the loop itself draws from all three streams
        x, y = torch.randn(8, 6) * scale, torch.randint(0, 3, (8,))
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(lambda x=x, y=y: loss_of(x, y))
        else:
            loss_of(x, y)
            optimizer.step()
    if monitor is not None:
        monitor.diagnose()
        assert monitor.latest is not None
        assert monitor.latest.step == STEPS - 1
        monitor.close()
    streams = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    return model.state_dict(), leaves(optimizer.state_dict()), streams


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def bits(value: Any) -> Any:
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


def assert_same(one: Run, other: Run) -> None:
    assert list(one[0]) == list(other[0]), "a key came into the model's state_dict"
    assert [bits(t) for t in one[0].values()] == [bits(t) for t in other[0].values()], "weights differ"
    assert [bits(v) for v in one[1]] == [bits(v) for v in other[1]], "optimizer states differ"
    assert one[2][0] == other[2][0], "random's stream was used"
    assert all(np.array_equal(a, b) for a, b in zip(one[2][1], other[2][1], strict=True)), "numpy's stream was used"
    assert torch.equal(one[2][2], other[2][2]), "torch's stream was used"


def watch_strictly(model: nn.Module, optimizer: Any, **options: Any) -> gm.Monitor:
    return gm.watch(model, optimizer, strict=True, **options)


MAKERS: dict[str, tuple[type[nn.Module], Make]] = {
    "SGD": (Net, lambda p: OPTIM.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "Adam": (Net, lambda p: OPTIM.Adam(p, 1e-2, amsgrad=True)),
    "AdamW": (Net, lambda p: OPTIM.AdamW(p, 1e-2)),
    "Adamax": (Net, lambda p: OPTIM.Adamax(p, 1e-2)),
    "Adadelta": (Net, lambda p: OPTIM.Adadelta(p, 1.0)),
    "Adafactor": (Net, lambda p: OPTIM.Adafactor(p, 1e-2)),
    "Adagrad": (Net, lambda p: OPTIM.Adagrad(p, 1e-2)),
    "ASGD": (Net, lambda p: OPTIM.ASGD(p, 1e-2)),
    "NAdam": (Net, lambda p: OPTIM.NAdam(p, 1e-2)),
    "RAdam": (Net, lambda p: OPTIM.RAdam(p, 1e-2)),
    "RMSprop": (Net, lambda p: OPTIM.RMSprop(p, 1e-2, momentum=0.9, centered=True)),
    "Rprop": (Net, lambda p: OPTIM.Rprop(p, 1e-2)),
    "Muon": (Net, lambda p: OPTIM.Muon(p, 1e-2)),
    "LBFGS": (Net, lambda p: OPTIM.LBFGS(p, 0.1, max_iter=3)),
    "LBFGS strong_wolfe": (Net, lambda p: OPTIM.LBFGS(p, 0.1, max_iter=3, line_search_fn="strong_wolfe")),
    "SparseAdam": (Bag, lambda p: OPTIM.SparseAdam(list(p), 1e-2)),
    "SGD sparse": (Bag, lambda p: OPTIM.SGD(p, 0.1)),
}
FOREACH = ("SGD", "Adam", "AdamW", "Adamax", "Adadelta", "Adagrad", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
for _name in FOREACH:
    MAKERS[f"{_name} foreach"] = (Net, lambda p, name=_name: getattr(OPTIM, name)(p, lr=1e-2, foreach=True))
for _name in FUSED:
    MAKERS[f"{_name} fused"] = (Net, lambda p, name=_name: getattr(OPTIM, name)(p, lr=1e-2, fused=True))


def test_every_optimizer_of_torch_is_in_the_list():
    present = {
        name
        for name, kind in vars(OPTIM).items()
        if isinstance(kind, type) and issubclass(kind, OPTIM.Optimizer) and kind is not OPTIM.Optimizer
    }
    assert present <= set(MAKERS)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_fifty_watched_steps_are_bit_identical(name):
    kind, make = MAKERS[name]
    assert_same(train(kind, make, None), train(kind, make, watch_strictly))


@pytest.mark.parametrize("backend", ["torch", "reference", *(["native"] if gm.stats.native_available() else [])])
@pytest.mark.parametrize("every", [1, 7])
def test_no_backend_and_no_sampling_touches_anything(backend, every):
    kind, make = MAKERS["AdamW"]
    watched = train(kind, make, lambda m, o: watch_strictly(m, o, backend=backend, every=every))
    assert_same(train(kind, make, None), watched)


def test_optimizers_found_at_their_step_are_left_alone_too():
    kind, make = MAKERS["SGD"]
    assert_same(train(kind, make, None), train(kind, make, lambda m, _: watch_strictly(m, None)))


def test_a_recorded_run_is_left_alone_too(tmp_path):
    kind, make = MAKERS["Adam"]
    watched = train(kind, make, lambda m, o: watch_strictly(m, o, record=tmp_path / "run"))
    assert_same(train(kind, make, None), watched)


def test_a_clip_that_never_bites_is_left_alone_too():
    """Below the threshold the gradients, and so the weights, are those of a run without the transform."""
    kind, make = MAKERS["AdamW"]
    watched = train(kind, make, lambda m, o: watch_strictly(m, o, transform=gm.clip.norm(1e9)))
    assert_same(train(kind, make, None), watched)
