"""The noise scale against gradients whose mean and covariance are known, and its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.stats.noise_scale import noise_scale


def norms_of(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return squared norms of small batches [S, R] and of their means [S], of gradients [S, R, D]."""
    return np.square(gradients).sum(axis=2), np.square(gradients.mean(axis=1)).sum(axis=1)


@pytest.mark.parametrize("noise", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("count", [2, 8])
def test_gradients_of_known_covariance(noise, count):
    rng = np.random.default_rng(0)
    dimensions, steps = 400, 300
    mean = rng.standard_normal(dimensions)
    deviations = noise * rng.uniform(0.5, 1.5, dimensions)  # another one in each direction
    gradients = mean + deviations * rng.standard_normal((steps, count, dimensions))
    found = noise_scale(*norms_of(gradients))
    signal, trace = np.square(mean).sum(), np.square(deviations).sum()
    assert found.trace == pytest.approx(trace, rel=0.02)
    assert abs(found.squared_norm - signal) < 4 * found.squared_norms.std(ddof=1) / math.sqrt(steps)
    assert abs(found.value - trace / signal) < 4 * found.error
    assert found.error < 0.4 * found.value


def test_the_published_example():
    """b = 32, B = 256: |G_b|^2 = 5, |G_B|^2 = 1.5 give |G|^2 = 1 and S = 128, which is 4 batches of 32."""
    found = noise_scale(np.full((1, 8), 5.0), np.array([1.5]))
    assert (found.squared_norm, 32 * found.trace, 32 * found.value) == (1.0, 128.0, 128.0)
    assert math.isnan(found.error)


def test_pure_noise_is_not_resolved():
    found = noise_scale(np.full((4, 2), 2.0), np.full(4, 0.5))  # the mean is smaller than noise alone would make it
    assert found.squared_norm < 0
    assert math.isnan(found.value)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_it_has_no_unit_and_follows_its_definition(count, steps, seed, factor):
    gradients = 1.0 + np.random.default_rng(seed).standard_normal((steps, count, 7))
    one, other = noise_scale(*norms_of(gradients)), noise_scale(*norms_of(factor * gradients))
    if not math.isnan(one.value):
        assert other.value == pytest.approx(one.value, rel=1e-6)
    # The trace is the sum of the variances between small batches, which numpy computes from the gradients themselves.
    assert one.trace == pytest.approx(gradients.var(axis=1, ddof=1).sum(axis=1).mean(), rel=1e-9)
    assert one.squared_norms.shape == one.traces.shape == (steps,)
