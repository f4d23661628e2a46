"""`gm.watch(transform=gm.clip.norm(x))`: the weights of torch's clip in the same loop, once per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from clip_reference import assert_close, batch, clipped, dense64, net, p_norm, weights
from torch import nn
from torch.nn.utils import clip_grad_norm_

import gradmedic as gm

pytestmark = pytest.mark.filterwarnings("error")

mse = nn.functional.mse_loss
STEPS = 12
LIMIT = 1.5

MAKERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9),
    "SGD fused": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, fused=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), 0.01),
    "AdamW foreach": lambda m: torch.optim.AdamW(m.parameters(), 0.01, foreach=True),
    "AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True),
}


def watch(model: nn.Module, optimizer: Any, limit: float = LIMIT, **options: Any) -> gm.Monitor:
    return gm.watch(model, optimizer, transform=gm.clip.norm(limit), strict=True, **options)


def train(
    make: Callable[[nn.Module], torch.optim.Optimizer],
    clip: str,
    *,
    accumulate: int = 1,
    scaler: torch.amp.GradScaler | None = None,
    bad: frozenset[int] = frozenset(),
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[nn.Module, list[gm.Frame]]:
    """The usual loop; `clip` says who clips: "torch", "transform" or "both" (torch's at twice the limit)."""
    model = net(dtype=dtype)
    optimizer = make(model)
    monitor = watch(model, optimizer, **options) if clip != "torch" else None
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, rows=8, dtype=dtype)
        for part in range(accumulate):
            rows = slice(part * 8 // accumulate, (part + 1) * 8 // accumulate)
            loss = mse(model(x[rows]), y[rows]) / accumulate * (0.02 if step % 3 == 2 else 1.0)
            loss = loss * math.inf if step in bad else loss
            (scaler.scale(loss) if scaler else loss).backward()
        if clip != "transform":
            if scaler:
                scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), LIMIT if clip == "torch" else 2 * LIMIT)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    frames = []
    if monitor is not None:
        frames = list(monitor.run.frames())
        monitor.close()
    return model, frames


def assert_bites(frames: list[gm.Frame], limit: float = LIMIT) -> None:
    """The clip was active on some steps and idle on others, and the frames say exactly when."""
    assert [frame.step for frame in frames] == list(range(STEPS))
    applied = [frame for frame in frames if not frame.skipped]
    assert {frame.clipped for frame in applied} == {True, False}
    for frame in applied:
        assert frame.clip_threshold == limit
        assert frame.clipped == (frame.grad_norm > limit)
        assert frame.grad_norm_post == pytest.approx(min(frame.grad_norm, limit), rel=1e-5)
        assert frame.clip_scale == pytest.approx(min(1.0, limit / frame.grad_norm), rel=1e-5)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_weights_of_torchs_clip_in_the_same_loop(name, backend):
    """R46: the same training, step by step, with pre- and post-clip norms on record."""
    theirs, _ = train(MAKERS[name], "torch")
    ours, frames = train(MAKERS[name], "transform", backend=backend)
    assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)
    assert_bites(frames)


@pytest.mark.parametrize("every", [1, 5])
def test_sampling_does_not_change_what_is_clipped(every):
    reference, _ = train(MAKERS["SGD"], "torch")
    for backend in ("auto", "torch"):
        ours, frames = train(MAKERS["SGD"], "transform", every=every, backend=backend)
        assert_close(weights(ours), weights(reference), rtol=1e-5, atol=1e-6)
        assert_bites(frames)


def test_four_micro_batches_are_clipped_once_as_one_batch():
    """R20: the clip acts on the sum, once per step: the weights are those of the whole batch."""
    whole, _ = train(MAKERS["SGD"], "torch")
    parts, frames = train(MAKERS["SGD"], "transform", accumulate=4)
    assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-6)
    assert_bites(frames)
    assert {frame.micro_batches for frame in frames} == {4}


@pytest.mark.parametrize("name", ["SGD", "SGD fused", "AdamW", "AdamW fused"])
@pytest.mark.parametrize("bad", [frozenset(), frozenset({3, 4, 9})])
def test_under_a_loss_scale_the_clip_is_in_true_units(name, bad):
    """R2, R3: fused optimizers see scaled gradients; withheld steps neither clip nor change a weight."""
    if name == "SGD fused" and bad:
        bad = frozenset({3, 9})

    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=256, growth_interval=3)

    theirs, _ = train(MAKERS[name], "torch", scaler=scaler(), bad=bad)
    ours, frames = train(MAKERS[name], "transform", scaler=scaler(), bad=bad)
    assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)
    assert_bites(frames)
    assert {frame.step for frame in frames if frame.skipped} == bad


def test_together_with_the_users_own_clip():
    """Theirs first, then ours on what it left: the smaller threshold holds, and both are accounted for."""
    alone, _ = train(MAKERS["SGD"], "torch")
    both, frames = train(MAKERS["SGD"], "both")
    assert_close(weights(both), weights(alone), rtol=1e-4, atol=1e-6)
    for frame in frames:
        assert frame.grad_norm_post == pytest.approx(min(frame.grad_norm, LIMIT), rel=1e-5)
    assert max(frame.grad_norm for frame in frames) > 2 * LIMIT


def test_the_users_tighter_clip_leaves_ours_nothing_to_do():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        held = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), held, strict=True))
    assert monitor.latest.grad_norm_post == pytest.approx(0.1, rel=1e-4)
    assert monitor.latest.clipped


def test_lbfgs_is_refused_before_training():
    """R31: its closures would pair losses with gradients that are not theirs. Watching alone is fine."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1)
    before = weights(model)
    with pytest.raises(gm.TransformError, match="LBFGS calls its closure several times"):
        watch(model, optimizer, 0.7)
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), before, strict=True))
    with gm.watch(model, optimizer, strict=True) as monitor:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse(model(batch(0)[0]), batch(0)[1])
            loss.backward()
            return loss

        optimizer.step(closure)
    assert monitor.latest.step == 0


def test_inside_an_ordinary_closure():
    """R31: `SGD.step(closure)` is clipped at the end of the closure."""
    results = []
    for ours in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        monitor = watch(model, optimizer) if ours else None
        for step in range(4):

            def closure(step: int = step, model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss = mse(model(batch(step)[0]), batch(step)[1])
                loss.backward()
                return loss

            if ours:
                optimizer.step(closure)
            else:
                closure()
                clip_grad_norm_(model.parameters(), LIMIT)
                optimizer.step()
        results.append(weights(model))
        if monitor is not None:
            monitor.close()
    assert_close(*results)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_sick_tensor_does_not_damage_the_others(value, backend):
    """R4: gradients of healthy tensors reach the optimizer bit for bit; the frame counts what is sick."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with watch(model, optimizer, 1e-3, backend=backend) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        model[0].bias.grad[0] = value
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        frame = monitor.latest
    for name, p in model.named_parameters():
        if name != "0.bias":
            assert torch.equal(p.detach(), before[name] - gradients[name])
    assert frame.nonfinite == 1
    assert not frame.clipped
    assert {name for name, row in frame.tensors.items() if row.nan_count + row.inf_count} == {"0.bias"}


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_huge_gradients_are_clipped_and_not_erased(backend):
    """R4: 1e25 in fp32: the step has the length of the threshold."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    before = weights(model)
    with watch(model, optimizer, 0.5, backend=backend) as monitor:
        sum(p.sum() for p in model.parameters()).backward()
        for p in model.parameters():
            p.grad.mul_(1e25)
        expected = p_norm([dense64(p.grad) for p in model.parameters()], 2.0)
        optimizer.step()
        frame = monitor.latest
    moved = [b - a for a, b in zip(weights(model), before, strict=True)]
    assert p_norm(moved, 2.0) == pytest.approx(0.5, rel=1e-4)
    assert (frame.grad_norm, frame.grad_norm_post) == pytest.approx((expected, 0.5), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_models_of_other_dtypes(dtype):
    """R60: clipped by the float64 norm; the gradient that the optimizer uses is the reference's, rounded once."""
    model = net(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = batch(0, dtype=dtype)
    with watch(model, optimizer, 0.3) as monitor:
        mse(model(x), y).backward()
        arrays = [dense64(p.grad) for p in model.parameters()]
        optimizer.step()
    epsilon = 2 * torch.finfo(dtype).eps
    assert_close([dense64(p.grad) for p in model.parameters()], clipped(arrays, 0.3), rtol=epsilon, atol=epsilon * 1e-2)
    assert monitor.latest.grad_norm == pytest.approx(p_norm(arrays, 2.0), rel=1e-6)
    assert monitor.latest.grad_norm_post == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("kind", ["SparseAdam", "SGD"])
def test_sparse_gradients(kind):
    """A sparse embedding, with duplicate rows, is clipped as its dense form would be."""
    torch.manual_seed(0)
    model = nn.Embedding(8, 3, sparse=True)
    optimizer = getattr(torch.optim, kind)(list(model.parameters()), lr=0.1)
    with watch(model, optimizer, 0.2) as monitor:
        model(torch.tensor([1, 1, 5])).square().sum().backward()
        arrays = [dense64(model.weight.grad)]
        optimizer.step()
        assert_close([dense64(model.weight.grad)], clipped(arrays, 0.2))
    assert monitor.latest.grad_norm == pytest.approx(p_norm(arrays, 2.0), rel=1e-6)
    assert monitor.latest.grad_norm_post == pytest.approx(0.2, rel=1e-5)


def test_tied_weights_and_duplicates_are_scaled_once():
    """R23: the joint norm is over unique tensors, and a tied weight is not scaled twice."""
    torch.manual_seed(0)
    table, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, nn.Linear(3, 3), head)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, 0.1):
        model(torch.tensor([0, 1, 2])).square().sum().backward()
        arrays = [dense64(p.grad) for p in model.parameters()]
        optimizer.step()
    assert_close([dense64(p.grad) for p in model.parameters()], clipped(arrays, 0.1))


def test_parameters_without_a_gradient_are_passed_over():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, 0.1) as monitor:
        model[2](torch.ones(1, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()
    assert model[0].weight.grad is None
    assert monitor.latest.grad_norm is None
    assert not monitor.latest.clipped


def test_each_optimizer_is_clipped_by_its_own_norm():
    """R36: with two optimizers each step's gradients are those of its optimizer, and so is the norm."""
    models = {"a": net(1), "b": net(2)}
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.0) for name, model in models.items()}
    with gm.watch(models, optimizers, transform=gm.clip.norm(0.4), strict=True):
        x, y = batch(0)
        (mse(models["a"](x), y) + 9 * mse(models["b"](x), y)).backward()
        arrays = {name: [dense64(p.grad) for p in model.parameters()] for name, model in models.items()}
        for optimizer in optimizers.values():
            optimizer.step()
    for name, model in models.items():
        assert_close([dense64(p.grad) for p in model.parameters()], clipped(arrays[name], 0.4))


def test_counts_go_on_after_a_restart():
    """R46: the running share of clipped steps and the step index survive `state_dict`."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)

    def run(monitor: gm.Monitor, factors: list[float]) -> list[gm.Frame]:
        for factor in factors:
            optimizer.zero_grad()
            (mse(model(batch(0)[0]), batch(0)[1]) * factor).backward()
            optimizer.step()
        return list(monitor.run.frames())

    with watch(model, optimizer) as monitor:
        assert run(monitor, [1e3, 1e-3, 1e3])[-1].clip_frequency == pytest.approx(2 / 3)
        state = monitor.state_dict()
    with watch(model, optimizer) as monitor:
        monitor.load_state_dict(state)
        found = run(monitor, [1e-3, 1e3])
    assert [frame.step for frame in found] == [3, 4]
    assert [frame.clip_frequency for frame in found] == pytest.approx([2 / 4, 3 / 5])


def test_a_gradient_penalty_is_clipped_once():
    """The inner gradient is none of the clip's business."""
    results = []
    for ours in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        monitor = watch(model, optimizer) if ours else None
        for step in range(5):
            optimizer.zero_grad()
            x = batch(step)[0].requires_grad_()
            out = model(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (mse(out, batch(step)[1]) + (slope.norm(2, dim=1) - 1).square().mean()).backward()
            if not ours:
                clip_grad_norm_(model.parameters(), LIMIT)
            optimizer.step()
        results.append(weights(model))
        if monitor is not None:
            monitor.close()
    assert_close(*results)


@pytest.mark.parametrize("limit", [-1.0, 0.0, math.nan, "1x"])
def test_a_threshold_that_makes_no_sense_is_an_error_at_construction(limit):
    """R62: said before any training."""
    with pytest.raises(gm.InputError, match="threshold: expected a number > 0"):
        gm.clip.norm(limit)


def test_infinity_measures_only():
    ours, frames = train(MAKERS["SGD"], "transform", limit=math.inf)
    model = net()
    optimizer = MAKERS["SGD"](model)
    for step in range(STEPS):
        optimizer.zero_grad()
        (mse(model(batch(step)[0]), batch(step)[1]) * (0.02 if step % 3 == 2 else 1.0)).backward()
        optimizer.step()
    assert all(np.array_equal(a, b) for a, b in zip(weights(ours), weights(model), strict=True))
    assert not any(frame.clipped for frame in frames)
