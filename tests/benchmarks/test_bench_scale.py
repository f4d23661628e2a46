"""The simulation behind docs/scale.md: a step takes as many calls on any number of ranks and of tensors."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import gradmedic as gm

_SPEC = importlib.util.spec_from_file_location("scale", Path(__file__).parents[2] / "benchmarks" / "scale.py")
scale = importlib.util.module_from_spec(_SPEC)
sys.modules["scale"] = scale
_SPEC.loader.exec_module(scale)

ROWS = 4 + 9 + 5  # a maximum of four rows; sums of nine for a table and of five for what the step has changed
DIRECTION = 3  # and three more where the step before has left a direction


def simulate(tensors: int, world: int, **options):
    given = {"transform": None, "every": 1, "backend": "auto", **options}
    return scale.simulate(tensors, world, steps=4, **given)


@pytest.mark.parametrize("world", [2, 16384])
@pytest.mark.parametrize("tensors", [3, 40])
def test_two_collectives_of_so_many_numbers_for_each_tensor(tensors, world):
    last = simulate(tensors, world)[-1]
    assert last.kinds == ["MAX", "SUM"]
    assert last.bytes == (ROWS + DIRECTION) * tensors * 8
    assert last.looks == (1 if world == 2 else 0)  # of 16,384 ranks each looks at every 64th step


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_what_a_transform_and_a_step_without_a_table_take(backend):
    treated = simulate(5, 64, transform=gm.clip.norm(1.0), backend=backend)[-1]
    assert treated.kinds == ["MAX", "SUM", "SUM"]
    sparse = simulate(5, 64, every=3, backend=backend)
    assert [each.kinds for each in sparse] == [["MAX", "SUM"], ["SUM"], ["SUM"], ["MAX", "SUM"]]
    assert not torch.distributed.is_initialized()


def test_the_time_of_a_collective_grows_with_the_logarithm_of_the_ranks():
    few, many = (scale.collective_seconds(2, 1000, world) for world in (8, 16384))
    assert many / few == pytest.approx(14 / 3, rel=0.01)
