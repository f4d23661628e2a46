"""What a batch is like, and losses that stand out."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.probes.batch_identity import batch_rows
from gradmedic.probes.graph import walk
from gradmedic.probes.startle import LEAST, MAX_LOOKS, Startle


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def look(loss: torch.Tensor) -> list[tuple[str, dict[str, float]]]:
    return [
        (row.leaf, {key: float(value) for key, value in row.extra.items()}) for row in batch_rows(walk([loss]).nodes)
    ]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_ids_are_counted(ids):
    [(kind, found)] = look(nn.Embedding(7, 2)(torch.tensor(ids)).sum())
    counts = Counter(ids)
    assert kind == "ids"
    assert found["distinct"] == len(counts)
    assert found["top_share"] == pytest.approx(max(counts.values()) / len(ids))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(6, 3), (8, 6)),
        (nn.Linear(6, 3, bias=False), (8, 6)),
        (nn.Linear(6, 3), (2, 4, 6)),
        (nn.Conv2d(2, 3, 3), (4, 2, 5, 5)),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (8, 2, 3)),
        (nn.BatchNorm1d(6), (8, 6)),
        (nn.LayerNorm(6), (8, 6)),
    ],
)
def test_values_are_those_of_the_input(module, shape):
    x = torch.randn(shape)
    x[0] *= 50
    out = module(x)
    [(kind, found)] = look(nn.Linear(out.shape[-1], 2)(out).square().sum())
    assert kind == "values"
    assert found["count"] == x.numel()
    assert found["max_abs"] == pytest.approx(float(x.abs().max()))
    assert found["rms"] == pytest.approx(float(x.square().mean().sqrt()), rel=1e-5)


def test_values_that_are_not_finite_are_counted_and_left_out():
    x = torch.ones(4, 3)
    x[0, 0], x[1, 1] = math.inf, math.nan
    [(_, found)] = look(nn.Linear(3, 1)(x).sum())
    assert (found["nonfinite"], found["max_abs"]) == (2, 1)


def test_equal_batches_have_equal_fingerprints_and_others_do_not():
    layer = nn.Linear(5, 2)
    one, other = torch.randn(40, 5), torch.randn(40, 5)
    prints = [look(layer(x).sum())[0][1]["fingerprint"] for x in (one, one.clone(), other, one.flip(0))]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_what_is_computed_is_no_input():
    deep = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    assert len(look(deep(torch.randn(3, 4)).sum())) == 1


# -- losses that stand out ---------------------------------------------------------------------------------------------


def fed(values: list[float]) -> list[bool]:
    startle = Startle()
    return [startle.notice([torch.tensor(value)]) for value in values]


@given(st.lists(st.floats(0.9, 1.0), min_size=LEAST, max_size=60), st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_falling_losses_never_startle_and_a_jump_does(noise, share):
    falling = sorted(noise, reverse=True)
    assert not any(fed(falling))
    assert fed([*falling, 1.2])[-1]
    assert not fed([*falling, min(noise) + share * (max(noise) - min(noise))])[-1]


def test_the_first_losses_never_startle_and_one_that_is_not_finite_does_once():
    assert not any(fed([1.0] * (LEAST - 1) + [50.0]))
    assert fed([1.0, math.nan, math.inf, 1.0]) == [False, True, False, False]


def test_looks_are_bounded():
    assert sum(fed([2.0**k for k in range(500)])) == MAX_LOOKS


def test_several_roots_and_other_shapes_are_left_alone():
    startle = Startle()
    for _ in range(50):
        startle.notice([torch.tensor(1.0)])
    assert not startle.notice([torch.tensor(9.0), torch.tensor(9.0)])
    assert not startle.notice([torch.full((3,), 9.0)])
    assert not startle.notice([torch.tensor(9.0, device="meta")])


def test_batches_that_differ_only_away_from_blank_margins_are_told_apart():
    """Every 32nd value of 8 x 8 images is a blank margin."""
    images = torch.zeros(128, 8, 8)
    prints = set()
    for seed in range(20):
        torch.manual_seed(seed)
        images[:, 1:7, 1:7] = torch.rand(128, 6, 6)
        prints.add(look(nn.Linear(64, 3)(images.flatten(1)).sum())[0][1]["fingerprint"])
    assert len(prints) == 20
