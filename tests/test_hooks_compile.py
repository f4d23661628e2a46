"""torch.compile: no crash, no graph and no graph break more than without us, and the same numbers as in eager mode."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import gradmedic as gm
from hooks_training import (
    batches,
    bit_identical,
    cross_entropy,
    gradient_norms,
    mlp,
    module_hooks,
    recorded_norms,
    sgd,
    train,
    weights_of,
)
from hooks_training import (
    single_thread as single_thread,
)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> tuple[int, int]:
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager", fullgraph=True)


@functools.cache
def without_us(steps: int) -> tuple[tuple[int, int], list[torch.Tensor]]:
    model = mlp()
    train(compiled(model), sgd(model), batches(steps))
    found = graphs()
    torch._dynamo.reset()
    counters.clear()
    return found, weights_of(model)


@pytest.mark.parametrize("watched", ["model", "compiled"])
@pytest.mark.parametrize("order", ["attach first", "compile first", "warm"])
def test_no_graph_and_no_break_more(watched, order):
    """R7: attach before or after torch.compile, or after the first compiled steps, through the 3 first steps and on."""
    expected, weights = without_us(8)
    model = mlp()
    optimizer = sgd(model)
    if order == "attach first":
        monitor = gm.watch(model, optimizer, strict=True)
        fast = compiled(model)
        if watched == "compiled":
            monitor = gm.watch(fast, optimizer, strict=True)
    else:
        fast = compiled(model)
        if order == "warm":
            train(fast, optimizer, batches(3))
        monitor = gm.watch(fast if watched == "compiled" else model, optimizer, strict=True)
    data = batches(8) if order != "warm" else batches(8)[3:]
    losses, norms = train(fast, optimizer, data, named=model)
    monitor.close()
    assert graphs() == expected
    assert bit_identical(weights_of(model), weights)
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms
    assert module_hooks(model) == 0


def test_detaching_does_not_compile_anew():
    """R7: closing a monitor takes its hooks off, which costs a compiled model one graph in the first steps, no more."""
    expected, weights = without_us(6)
    model = mlp()
    optimizer = sgd(model)
    fast = compiled(model)
    with gm.watch(model, optimizer, strict=True):
        train(fast, optimizer, batches(2))
    train(fast, optimizer, batches(6)[2:])
    assert graphs() in (expected, (expected[0] + 1, 0))
    assert bit_identical(weights_of(model), weights)
    assert module_hooks(model) == 0


def test_a_module_compiled_in_place():
    """R7: `module.compile()` keeps its graph, and its numbers."""
    model = mlp()
    optimizer = sgd(model)
    model.compile(backend="aot_eager", fullgraph=True)
    with gm.watch(model, optimizer, strict=True) as monitor:
        _, norms = train(model, optimizer, batches(5))
    assert graphs() == (1, 0)
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_scalar_outputs_captured():
    """R7: with capture_scalar_outputs on, nothing of ours is traced."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(compiled(model), optimizer, batches(4))
    assert graphs() == (1, 0)
    assert monitor.run.steps.num_rows == 4


def test_a_compiled_submodule_keeps_its_name():
    """R7, R35: a compiled part inside an eager model has the names that it has without torch.compile."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = torch.compile(mlp(), backend="aot_eager")
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            return self.head(self.body(x))

    model = Outer()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        _, norms = train(model, optimizer, batches(5))
    names = ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias"]
    assert monitor.run.matrix("norm")[1] == names
    expected = {name.replace("._orig_mod", ""): value for name, value in norms[-1].items()}
    assert recorded_norms(monitor.run)[-1] == pytest.approx(expected)


def test_a_compiled_optimizer_step():
    """R7: a compiled `optimizer.step` keeps its graphs and gains no break, and its steps are seen."""

    def go(watch: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = mlp()
        optimizer = sgd(model)
        step = torch.compile(optimizer.step, backend="aot_eager")
        monitor = gm.watch(model, optimizer, strict=True) if watch else None
        for x, y in batches(4):
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y)
            loss.backward()
            losses.append(float(loss.detach()))
            norms.append(gradient_norms(model))
            step()
        if monitor is not None:
            monitor.close()
            assert monitor.run.series("loss").tolist() == pytest.approx(losses[-4:])
            assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms[-4:]
            assert (monitor.run.matrix("update_norm")[2] > 0).all()
        return weights_of(model)

    losses: list[float] = []
    norms: list[dict[str, float]] = []
    plain = go(False)
    expected, breaks = graphs()
    counters.clear()
    assert bit_identical(plain, go(True))
    assert graphs()[0] == expected
    assert graphs()[1] <= breaks


def test_a_training_step_compiled_as_a_whole():
    """R7: a function that holds the whole step, backward call included, trains bit-identically while we watch."""

    def go(watch: bool):
        torch._dynamo.reset()
        counters.clear()
        model = mlp()
        optimizer = sgd(model)
        monitor = gm.watch(model, optimizer, strict=True) if watch else None

        @torch.compile(backend="aot_eager")
        def step(x, y):
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y)
            loss.backward()
            optimizer.step()
            return loss

        for x, y in batches(4):
            step(x, y)
        if monitor is not None:
            monitor.close()
            assert monitor.run.series("step").tolist() == [0, 1, 2, 3]
            assert (monitor.run.matrix("update_norm")[2] > 0).all()
        return weights_of(model)

    assert bit_identical(go(False), go(True))


def test_nothing_runs_while_a_stream_is_captured(monkeypatch):
    """R74: while a CUDA graph is being captured every hook is a no-op; watching goes on afterwards."""
    plain, model = mlp(), mlp()
    train(plain, sgd(plain), batches(6))
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(6)[:2])
        with monkeypatch.context() as captured:
            captured.setattr(torch.cuda, "is_initialized", lambda: True)
            captured.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            train(model, optimizer, batches(6)[2:4])
            assert monitor.steps_seen == 2
        train(model, optimizer, batches(6)[4:])
    assert monitor.run.steps.num_rows == 4
    assert bit_identical(weights_of(plain), weights_of(model))
