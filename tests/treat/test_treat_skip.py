"""A skipped step is a true skip: the run goes on as if the bad batch had never been."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from treat_reference import assert_same, batches, make_model, snapshot, spoiled, train

import gradmedic as gm

_PLAIN: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "AdamW": {"weight_decay": 0.1, "amsgrad": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adagrad": {},
    "Adadelta": {},
    "Adafactor": {},
    "ASGD": {},
    "RMSprop": {"momentum": 0.9},
    "Rprop": {},
}
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


def _cases() -> list[Any]:
    """Every optimizer with both backends and both bad steps: plain and foreach with two of these four, fused all."""
    cases = []
    for name, kwargs in _PLAIN.items():
        ways = [(0, "auto", False), (3, "torch", False), (0, "torch", True), (3, "auto", True)]
        for bad, backend, foreach in ways:
            given = {**kwargs, "foreach": foreach}
            way = "foreach" if foreach else "plain"
            cases.append(pytest.param(name, given, bad, backend, id=f"{bad}-{name}-{way}-{backend}"))
    return cases + [
        pytest.param(name, {**_PLAIN[name], "fused": True}, bad, backend, id=f"{bad}-{name}-fused-{backend}")
        for name in _FUSED
        for bad in (0, 3)
        for backend in ("auto", "torch")
    ]


def _optimizer(name: str, model: torch.nn.Module, kwargs: dict[str, Any]) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **kwargs)
    return made


def test_every_optimizer_of_torch_is_tried() -> None:
    there = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    # LBFGS is refused; SparseAdam and Muon take other tensors and have tests of their own.
    assert there - {"Optimizer", "LBFGS", "SparseAdam", "Muon"} == set(_PLAIN)


@pytest.mark.parametrize(("name", "kwargs", "bad", "backend"), _cases())
def test_a_skipped_step_leaves_no_trace(name: str, kwargs: dict[str, Any], bad: int, backend: str) -> None:
    data = batches(6)
    model = make_model()
    optimizer = _optimizer(name, model, kwargs)
    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), backend=backend, strict=True) as monitor:
        train(model, optimizer, data[:bad])
        before = snapshot(model, optimizer)
        train(model, optimizer, [spoiled(data[bad])])
        assert_same(before, snapshot(model, optimizer))
        frame = monitor.latest
        assert frame is not None
        assert frame.skipped
        assert "non-finite" in str(frame.skip_reason)
        assert not hasattr(optimizer, "found_inf")
        train(model, optimizer, data[bad:])
    plain = make_model()
    reference = _optimizer(name, plain, kwargs)
    train(plain, reference, data)
    assert_same(snapshot(plain, reference), snapshot(model, optimizer))


@pytest.mark.parametrize("name", ["Muon", "SparseAdam"])
def test_optimizers_of_special_tensors_skip_as_well(name: str) -> None:
    torch.manual_seed(0)
    sparse = name == "SparseAdam"
    model = torch.nn.Embedding(8, 4, sparse=True) if sparse else torch.nn.Linear(4, 4, bias=False)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        given = torch.tensor([1, 1, 5]) if sparse else torch.ones(3, 4)
        (model(given).pow(2).sum() * factor).backward()
        optimizer.step()

    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), strict=True):
        step(1.0)
        before = snapshot(model, optimizer)
        step(float("nan"))
        assert_same(before, snapshot(model, optimizer))
        step(1.0)
    assert not torch.equal(before[0]["weight"], model.weight)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_under_a_scaler_a_spike_is_skipped_and_earns_no_growth(fused: bool, backend: str) -> None:
    data = batches(40)
    data[30] = (data[30][0], data[30][1] * 1e4)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=31)
    guard = gm.guard.skip_spikes(min_samples=10, window=30)
    with gm.watch(model, optimizer, transform=guard, backend=backend, strict=True) as monitor:
        for at, batch in enumerate(data):
            before = snapshot(model, optimizer)
            train(model, optimizer, [batch], scaler=scaler)
            frame = monitor.latest
            assert frame is not None
            if at == 30:
                assert frame.skipped
                assert "spike" in str(frame.skip_reason)
                assert_same(before, snapshot(model, optimizer))
                assert scaler.get_scale() == 8.0  # 31 steps, of which one was not made
                assert scaler._get_growth_tracker() == 30
            else:
                assert not frame.skipped
        assert scaler.get_scale() == 16.0


def test_the_scalers_own_skip_still_lowers_the_scale() -> None:
    data = batches(4)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    with gm.watch(model, optimizer, transform=gm.guard.default(), strict=True) as monitor:
        train(model, optimizer, [data[0], spoiled(data[1]), data[2]], scaler=scaler)
        assert scaler.get_scale() == 4.0
        assert [bool(row) for row in monitor.run.steps["skipped"].to_pylist()] == [False, True, False]


@pytest.mark.parametrize("fused", [False, True])
def test_a_clip_under_a_scaler_without_unscale_uses_true_units(fused: bool) -> None:
    data = batches(5)
    results = []
    for scale in (1.0, 1024.0):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        with gm.watch(model, optimizer, transform=gm.clip.chain(gm.clip.value(0.05), 0.1), strict=True) as monitor:
            for inputs, targets in data:
                optimizer.zero_grad()
                scaler.scale(((model(inputs) - targets) ** 2).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
            frame = monitor.latest
            assert frame is not None
            assert frame.grad_norm_post is not None
            assert frame.clipped
            assert frame.grad_norm_post <= 0.1 * (1 + 1e-6)
        results.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-7)


def test_gradients_come_back_after_a_skip() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), strict=True):
        train(model, optimizer, [spoiled(batches(1)[0])])
    assert all(parameter.grad is not None for parameter in model.parameters())
