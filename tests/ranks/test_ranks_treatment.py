"""Treatment decides on every rank what it would have decided on one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm

TRANSFORMS = {
    "norm": lambda: gm.clip.norm(0.05),
    "by tensor": lambda: gm.clip.norm(0.02, per="tensor"),
    "by unit": lambda: gm.clip.norm(0.02, per="unit"),
    "cubic": lambda: gm.clip.norm(0.05, norm_type=3.0),
    "largest": lambda: gm.clip.norm(0.01, norm_type=math.inf),
    "value": lambda: gm.clip.value(0.01),
    "agc": lambda: gm.clip.agc(0.05),
    "adagc": lambda: gm.clip.adagc(),
    "by weight": lambda: gm.clip.norm(gm.clip.param_ratio(0.05), per="tensor"),
    "layers": lambda: gm.clip.layers({"0": 0.02, "2": gm.clip.value(0.01)}, default=0.05),
    "chain": lambda: gm.clip.chain(gm.clip.value(0.02), gm.clip.norm(0.03)),
    "spikes of elements": lambda: gm.clip.spike_clip(theta=1.5, grace=1),
    "default": lambda: gm.guard.default(),
}


def build() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def sharded() -> nn.Module:
    model = build()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def train(model: nn.Module, transform, rank: int = 0, world: int = 1, spoil: int | None = None, steps: int = 4) -> dict:
    """Train on this rank's share; on rank 1 the batch of step `spoil` has a NaN."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    frames, halted = [], None
    with gm.watch(model, optimizer, transform=transform, strict=True) as monitor:
        for step in range(steps):
            generator = torch.Generator().manual_seed(step)
            inputs, targets = (torch.randn(8, n, generator=generator, dtype=torch.float64) for n in (5, 1))
            if step == spoil and rank == world - 1:
                inputs[-1] = math.nan
            share = slice(rank * 8 // world, (rank + 1) * 8 // world)
            optimizer.zero_grad()
            (model(inputs[share]) - targets[share]).square().mean().backward()
            try:
                optimizer.step()
            except gm.TrainingHalted as error:
                halted = (step, str(error))
                break
            frame = monitor.latest
            frames.append((frame.grad_norm, frame.grad_norm_post, frame.clipped, frame.skipped, frame.skip_reason))
    weights = [whole(p).detach().numpy() for p in model.parameters()]
    return {"frames": frames, "weights": weights, "halted": halted}


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def each_transform() -> dict[str, dict]:
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return {name: train(sharded(), make(), rank, world) for name, make in TRANSFORMS.items()}


def test_sharded_gradients_are_treated_as_whole_ones():
    ranks = run_on_ranks(each_transform)
    for name, make in TRANSFORMS.items():
        expected = train(build(), make())
        assert any(frame[2] for frame in expected["frames"]) or name == "default", f"{name} never clips here"
        for found in ranks:
            for one, other in zip(found[name]["weights"], expected["weights"], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-10, err_msg=name)
            for one, other in zip(found[name]["frames"], expected["frames"], strict=True):
                assert one[:2] == pytest.approx(other[:2], rel=1e-7), name
                assert one[2:] == other[2:], name


SCHEMES = {"ddp": lambda: DistributedDataParallel(build()), "fsdp": sharded}
GUARDS = {
    "skip": lambda: gm.guard.skip_nonfinite(),
    "loss": lambda: gm.guard.skip_spikes("loss", z=4.0, window=16, min_samples=2),
    "halt": lambda: gm.guard.breaker(limit=1e5),
}


def one_bad_rank() -> dict[tuple[str, str], dict]:
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return {
        (scheme, kind): train(make(), guard(), rank, world, spoil=4, steps=6)
        for scheme, make in SCHEMES.items()
        for kind, guard in GUARDS.items()
    }


@pytest.fixture(scope="module")
def spoiled() -> list[dict]:
    return run_on_ranks(one_bad_rank)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", GUARDS)
def test_a_nan_on_one_rank_skips_or_halts_all(scheme, kind, spoiled):
    first, second = (found[scheme, kind] for found in spoiled)
    assert first["halted"] == second["halted"]
    assert (first["halted"] is not None) == (kind == "halt")
    assert [frame[3] for frame in first["frames"]] == [frame[3] for frame in second["frames"]]
    if kind != "halt":
        assert first["frames"][4][3]
    for one, other in zip(first["weights"], second["weights"], strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
