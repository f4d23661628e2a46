"""Tensor parallelism, partial and absent gradients, mixed types, and how many collectives a step takes.

R39: plain and distributed tensors, and several meshes, in one list. R68: [Replicate, Shard] placements.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gradmedic as gm
from gradmedic.stats.collective import Collective


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 1)).double()


def step(model: nn.Module) -> dict:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for at in range(2):
            generator = torch.Generator().manual_seed(at)
            inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64)
            model(inputs).square().mean().backward()
            total = gm.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
        frame = monitor.latest
        return {
            "total": (frame.grad_norm, frame.grad_norm_post, float(total)),
            "loss": frame.loss,
            "names": frame.tensors.names,
            **{c: np.asarray(frame.tensors.columns[c]) for c in ("norm", "std", "numel", "weight_norm", "update_norm")},
        }


def tensor_parallel() -> dict:
    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return step(parallelize_module(build(), mesh, plan))  # the other layers stay plain tensors


def two_dimensions() -> dict:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(build(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["data"])
    return step(model)


@pytest.mark.parametrize(("scheme", "world"), [(tensor_parallel, 2), (two_dimensions, 4)])
def test_plain_and_distributed_tensors_are_one_model(scheme, world):
    expected = step(build())
    for found in run_on_ranks(scheme, world=world):
        assert found["names"] == expected["names"]
        for key in ("total", "loss", "norm", "std", "numel", "weight_norm", "update_norm"):
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-9, atol=1e-12, err_msg=key)


def odd_gradients() -> dict:
    """A gradient that only rank 0 has, one whose values are yet to be added up, one in bf16, and one of nobody."""
    mesh, rank = init_device_mesh("cpu", (2,)), torch.distributed.get_rank()
    whole = torch.arange(12.0).reshape(4, 3) + 1
    names = ("expert", "partial", "coarse", "unused")
    kinds = (torch.float32, torch.float32, torch.bfloat16, torch.float32)
    places = ([Shard(0)], [Replicate()], [Shard(0)], [Shard(0)])
    model = nn.Module()
    for name, dtype, place in zip(names, kinds, places, strict=True):
        model.register_parameter(name, nn.Parameter(distribute_tensor(whole.to(dtype), mesh, place)))
    if rank == 0:
        model.expert.grad = DTensor.from_local(whole[:2], mesh, [Shard(0)], shape=(4, 3), stride=(3, 1))
    model.partial.grad = DTensor.from_local(whole * (0.25 if rank == 0 else 0.75), mesh, [Partial()])
    model.coarse.grad = distribute_tensor(whole.bfloat16(), mesh, [Shard(0)])
    measured = float(gm.clip_grad_norm_(model.parameters(), math.inf))
    optimizer = torch.optim.SGD([model.partial, model.coarse, model.expert, model.unused], lr=0.0)
    with gm.watch(model, optimizer, strict=True) as monitor:
        optimizer.step()
        table = monitor.latest.tensors
        return {
            "measured": measured,
            "total": monitor.latest.grad_norm,
            "norm": dict(zip(table.names, np.asarray(table.columns["norm"]).tolist(), strict=True)),
            "status": dict(zip(table.names, np.asarray(table.columns["status"]).tolist(), strict=True)),
        }


def test_gradients_that_are_elsewhere_or_unfinished_count_as_they_should():
    whole = torch.arange(12.0).reshape(4, 3) + 1
    expert, everything = float(whole[:2].norm()), float(whole.norm())
    for found in run_on_ranks(odd_gradients):
        assert found["norm"]["expert"] == pytest.approx(expert, rel=1e-6)
        assert found["norm"]["partial"] == pytest.approx(everything, rel=1e-6)
        assert found["norm"]["coarse"] == pytest.approx(everything, rel=1e-6)
        assert found["status"] == {"expert": 0, "partial": 0, "coarse": 0, "unused": 1}
        total = math.sqrt(expert**2 + 2 * everything**2)
        assert found["total"] == pytest.approx(total, rel=1e-6)
        assert found["measured"] == pytest.approx(total, rel=1e-6)


def count_collectives(layers: int, how: str = "") -> list[int]:
    """How many collectives of ours each optimizer step takes, a clip of the script's before it included."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made = []
    reduce = Collective._reduce

    def counting(self, values, operation):
        made[-1] += 1
        return reduce(self, values, operation)

    Collective._reduce = counting
    transform = {"treated": gm.clip.norm(1.0), "guarded": gm.guard.default()}.get(how)
    try:
        with gm.watch(model, optimizer, every=2, strict=True, modules=None, transform=transform):
            for _ in range(22):
                model(torch.randn(2, 4)).sum().backward()
                made.append(0)
                if how == "clipped":
                    torch.nn.utils.clip_grad_norm_(list(model.parameters())[:2], 1.0)  # a part of them only
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    finally:
        Collective._reduce = reduce
    return made


WAYS = ("", "clipped", "treated", "guarded")
FEW_AND_MANY = (2, 5)


def count_few_and_many() -> dict[tuple[int, str], list[int]]:
    return {(layers, how): count_collectives(layers, how) for layers in FEW_AND_MANY for how in WAYS}


@pytest.fixture(scope="module")
def counted() -> list[dict[tuple[int, str], list[int]]]:
    return run_on_ranks(count_few_and_many)


@pytest.mark.parametrize("how", WAYS)
def test_the_number_of_collectives_does_not_depend_on_the_number_of_tensors(how, counted):
    first, second = counted
    assert first == second
    few, many = (first[layers, how] for layers in FEW_AND_MANY)
    assert few == many
    decided = how in ("treated", "guarded")
    # A maximum and a sum; where something is decided before the step, another sum for what the step has changed.
    assert set(many[::2]) == {3 if decided else 2}
    # A step without a table: the norms, of each clip that has measured them.
    assert set(many[21::2]) == {2 if how == "clipped" else 1}
