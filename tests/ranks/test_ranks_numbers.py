"""What is recorded under DDP and fully_shard is what one process without any of it would have recorded.

R9: the reduced gradient, never a local one, also where it is accumulated without synchronisation. R10: gradients of
`fully_shard`, on whose parameters no tensor hook fires. R11, R12: the whole tensor's numbers on every rank, joined by
the right operation, with empty shards. R68: replicated shards count once.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm

STEPS = 4
COLUMNS = (
    *("norm", "max_abs", "min_abs", "mean", "std", "mean_abs", "numel", "zero_count"),
    *("weight_norm", "update_norm", "unchanged_frac", "cosine_prev"),
)


def build() -> nn.Module:
    torch.manual_seed(7)
    # Sizes that two ranks cannot divide evenly, a layer of one row, and one that is frozen.
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))
    model[2].bias.requires_grad_(False)
    return model.double()  # so that training itself rounds the same way


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return tuple(torch.randn(8, size, generator=generator, dtype=torch.float64) for size in (5, 1))


def train(model: nn.Module, rank: int, world: int, clip: float | None = None) -> list[dict]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    found = []
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step in range(STEPS):
            inputs, targets = batch(step)
            share = slice(rank * 8 // world, (rank + 1) * 8 // world)
            loss = (model(inputs[share]) - targets[share]).square().mean()
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            frame = monitor.latest
            table = {c: np.asarray(frame.tensors.columns[c]) for c in COLUMNS if c in frame.tensors.columns}
            found.append(
                {
                    "names": list(frame.tensors.names),
                    "total": frame.grad_norm,
                    "post": frame.grad_norm_post,
                    "clipped": frame.clipped,
                    "nonfinite": frame.nonfinite,
                    "histogram": None if frame.tensors.log2_hist is None else np.asarray(frame.tensors.log2_hist),
                    **table,
                }
            )
    return found


def under_ddp(clip: float | None) -> list[dict]:
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return train(DistributedDataParallel(build()), rank, world, clip)


def under_fsdp(clip: float | None) -> list[dict]:
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = build()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return train(fully_shard(model), rank, world, clip)


def under_hsdp(clip: float | None) -> list[dict]:
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    model = build()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return train(fully_shard(model, mesh=mesh), rank, world, clip)


def accumulated(scheme: str) -> list[tuple[float, int]]:
    """Two micro-batches a step, of which only the second one is reduced."""
    rank, model = torch.distributed.get_rank(), build()
    model = fully_shard(model) if scheme == "fsdp" else DistributedDataParallel(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    found = []
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step in range(STEPS):
            inputs, targets = batch(step)
            for part in range(2):
                share = slice(2 * (2 * part + rank), 2 * (2 * part + rank) + 2)
                with model.no_sync() if scheme == "ddp" and not part else contextlib.nullcontext():
                    if scheme == "fsdp":
                        model.set_requires_gradient_sync(bool(part))
                    ((model(inputs[share]) - targets[share]).square().mean() / 2).backward()
                assert (monitor.latest.step if monitor.latest else -1) == step - 1  # no step, and no gradient yet
            optimizer.step()
            optimizer.zero_grad()
            found.append((monitor.latest.grad_norm, monitor.latest.micro_batches))
    return found


def accumulated_both() -> dict[str, list[tuple[float, int]]]:
    return {scheme: accumulated(scheme) for scheme in ("ddp", "fsdp")}


def test_what_is_accumulated_without_synchronisation_is_recorded_once_it_is_reduced():
    expected = [frame["total"] for frame in train(build(), 0, 1)]
    for found in run_on_ranks(accumulated_both):
        for scheme in ("ddp", "fsdp"):
            np.testing.assert_allclose([norm for norm, _ in found[scheme]], expected, rtol=1e-8)
            assert {count for _, count in found[scheme]} == {2}


def compare(ranks: list[list[dict]], clip: float | None) -> None:
    expected = train(build(), 0, 1, clip)
    for found in ranks:
        for step, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one["names"] == other["names"]
            for key in (*COLUMNS, "total", "post", "clipped", "nonfinite"):
                if key == "cosine_prev" and key not in other:
                    assert key not in one
                    continue
                np.testing.assert_allclose(one[key], other[key], rtol=1e-8, atol=1e-12, err_msg=f"{key} at step {step}")
            np.testing.assert_array_equal(one["histogram"], other["histogram"])
    for step in range(STEPS):  # not nearly the same on all ranks: the same
        for key in ("total", "post"):
            assert len({ranks[rank][step][key] for rank in range(len(ranks))}) == 1


CLIPS = (None, 0.05)


def under_both() -> dict:
    return {(scheme.__name__, clip): scheme(clip) for scheme in (under_ddp, under_fsdp) for clip in CLIPS}


@pytest.fixture(scope="module")
def two_ranks() -> list[dict]:
    return run_on_ranks(under_both)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("scheme", ["under_ddp", "under_fsdp"])
def test_every_rank_records_the_numbers_of_the_whole(scheme, clip, two_ranks):
    compare([found[scheme, clip] for found in two_ranks], clip)


def test_replicated_shards_count_once():
    compare(run_on_ranks(under_hsdp, 0.05, world=4), 0.05)


NORM_TYPES = (1.0, 2.0, 3.0, math.inf)


def drop_in() -> dict[float, tuple[float, float, str]]:
    found = {}
    inputs, targets = batch(0)
    for norm_type in NORM_TYPES:
        model = build()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        (model(inputs) - targets).square().mean().backward()
        total = gm.clip_grad_norm_(model.parameters(), 0.1, norm_type)
        after = gm.clip_grad_norm_(model.parameters(), math.inf, norm_type)
        found[norm_type] = float(total), float(after), type(total).__name__
    return found


@pytest.fixture(scope="module")
def clipped() -> list[dict]:
    return run_on_ranks(drop_in)


@pytest.mark.parametrize("norm_type", NORM_TYPES)
def test_the_drop_in_clips_by_the_norm_of_the_whole(norm_type, clipped):
    model = build()
    inputs, targets = batch(0)
    (model(inputs) - targets).square().mean().backward()
    expected = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type))
    for found in clipped:
        total, after, kind = found[norm_type]
        assert kind == "Tensor"
        assert total == pytest.approx(expected, rel=1e-5)
        assert after == pytest.approx(0.1, rel=1e-4)
