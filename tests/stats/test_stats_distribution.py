"""Norms of whole tensors, from those of what lies here: whether or not all of the tensors lie on one mesh."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from gradmedic.stats.collective import Collective
from gradmedic.stats.distribution import Distribution

RANKS = 4


@pytest.fixture
def mesh(monkeypatch):
    """A mesh on which every other rank holds what this one does."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # makes the "fake" backend known
    distributed.init_process_group("fake", store=distributed.HashStore(), rank=0, world_size=RANKS)

    def reduce(self, values, operation):
        self.calls += 1
        return values.clone() if operation == distributed.ReduceOp.MAX else values * RANKS

    monkeypatch.setattr(Collective, "_reduce", reduce)
    yield init_device_mesh("cpu", (RANKS,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_are_joined_alike_with_and_without_tensors_that_lie_elsewhere(mesh, dtype):
    values = [3.0, 0.0, math.nan, math.inf, 1e25, 1e-30, *([1e200] if dtype == torch.float64 else [])]
    spread = [DTensor.from_local(torch.zeros(2, dtype=dtype), mesh, [Shard(0)], run_check=False) for _ in values]
    norms = torch.tensor(values, dtype=torch.float64)
    present = norms != 0
    given = norms.clone(), present.clone()
    together, there = Distribution(spread).join_norms(norms, present)
    torch.testing.assert_close(together, norms * math.sqrt(RANKS), rtol=1e-12, atol=0, equal_nan=True)
    assert there.tolist() == [value != 0 for value in values]
    torch.testing.assert_close((norms, present), given, rtol=0, atol=0, equal_nan=True)
    plain = torch.zeros(3, dtype=dtype)
    mixed, there_too = Distribution([plain, *spread, plain]).join_norms(
        torch.cat([norms.new_tensor([5.0]), norms, norms.new_tensor([7.0])]),
        torch.cat([present.new_tensor([True]), present, present.new_tensor([False])]),
    )
    torch.testing.assert_close(mixed[1:-1], together, rtol=0, atol=0, equal_nan=True)
    assert mixed[[0, -1]].tolist() == [5.0, 7.0]
    assert there_too.tolist() == [True, *there.tolist(), False]
