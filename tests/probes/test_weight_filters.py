"""Dead and repeated filters, against counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.probes.graph import walk
from gradmedic.probes.weight_filters import comparable, filter_numbers
from gradmedic.probes.weight_layers import layers


def numbers(weight: torch.Tensor) -> dict[str, float]:
    return {key: float(value) for key, value in filter_numbers(weight).items()}


def reference(weight: torch.Tensor) -> dict[str, float]:
    rows = weight.flatten(1).double().numpy()
    norms = np.sqrt((rows**2).sum(1))
    middle = np.sort(norms)[(len(norms) - 1) // 2]  # torch's median is the lower of two
    dead = norms < 1e-3 * max(middle, norms.max() / 10)
    duplicates = 0
    for i in range(len(rows)):
        duplicates += any(
            not dead[i] and not dead[j] and abs(rows[i] @ rows[j]) > 0.99 * norms[i] * norms[j] for j in range(i)
        )
    spectrum = np.linalg.svd(rows, compute_uv=False) ** 2
    return {
        "filters": float(len(rows)),
        "median_norm": middle,
        "dead_share": dead.mean(),
        "duplicate_share": duplicates / len(rows),
        "effective_rank": spectrum.sum() ** 2 / (spectrum**2).sum(),
    }


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    filters=st.integers(8, 40),
    dead=st.integers(0, 8),
    copies=st.integers(0, 8),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e6]),
)
def test_against_counting(seed: int, filters: int, dead: int, copies: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(filters, 4, 3, 3, generator=generator) * scale
    weight[filters - dead :] *= 1e-5
    weight[1 : 1 + min(copies, filters - dead - 1)] = weight[0] * -2
    assert numbers(weight) == pytest.approx(reference(weight), rel=1e-3)


def test_most_of_them_dead() -> None:
    weight = torch.randn(20, 4, 3, 3)
    weight[:15] = 0
    assert numbers(weight)["dead_share"] == 0.75


def test_zeros_by_design_are_neither_dead_nor_alike() -> None:
    found = numbers(torch.zeros(16, 4, 3, 3))
    assert (found["dead_share"], found["duplicate_share"], found["effective_rank"]) == (0.0, 0.0, 0.0)


def test_work_is_bounded() -> None:
    assert numbers(torch.randn(2000, 2, 3, 3))["filters"] <= 256


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Conv2d(4, 16, 3), True),
        (nn.Conv2d(16, 16, 1), True),
        (nn.Conv2d(4, 4, 3), False),  # few filters
        (nn.Conv2d(1, 16, 5), False),  # one channel
        (nn.Conv2d(16, 16, 5, groups=16), False),  # depthwise
        (nn.Conv2d(3, 16, 1), False),  # three numbers a filter
    ],
)
def test_which_layers_have_filters_to_compare(module: nn.Conv2d, expected: bool) -> None:
    x = torch.randn(2, module.in_channels, 6, 6)
    [layer] = layers(walk([module(x).sum()]))
    assert comparable(layer) == expected
