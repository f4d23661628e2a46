"""Clipping by norm of the model, of each tensor and of each unit, against float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_loop import Treated, bits, treated
from clip_reference import assert_close, clipped, dense64, p_norm
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.clip import norm
from gradmedic.errors import InputError

POWERS = [1.0, 1.5, 2.0, 4.0, math.inf]
SHAPES = [(4, 3), (5,), (), (0, 2), (2, 3, 2)]


def gradients(seed=0, dtype=torch.float32, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(s, generator=generator, dtype=torch.float64) * size).to(dtype) for s in SHAPES]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_of_the_model(power, limit):
    """R63: the joint norm is that of everything in one vector, for every p."""
    given = gradients()
    arrays = [dense64(g) for g in given]
    loop = Treated(norm(limit, norm_type=power), [torch.zeros_like(g) for g in given])
    after = loop.step(given)
    assert_close([dense64(g) for g in after], clipped(arrays, limit, power), rtol=1e-6)
    assert bool(loop.decision.clipped) == (limit < p_norm(arrays, power))
    assert loop.decision.threshold.item() == limit


@pytest.mark.parametrize("power", POWERS)
def test_of_each_tensor(power):
    given = gradients()
    after = treated(norm(1.5, per="tensor", norm_type=power), given)
    expected = [clipped([dense64(g)], 1.5, power)[0] for g in given]
    assert_close([dense64(g) for g in after], expected, rtol=1e-6)
    assert {bool(p_norm([dense64(g)], power) > 1.5) for g in given} == {True, False}


@pytest.mark.parametrize("power", POWERS)
def test_of_each_unit(power):
    """Rows of a matrix, slices along the first axis of more; vectors and scalars are one unit."""
    given = gradients()
    after = treated(norm(1.0, per="unit", norm_type=power), given)
    for one, two in zip(given, after, strict=True):
        array = dense64(one)
        units = [array] if array.ndim < 2 else list(array)
        expected = [clipped([unit], 1.0, power)[0] for unit in units]
        assert_close(list(dense64(two)) if array.ndim >= 2 else [dense64(two)], expected, rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.sampled_from(POWERS), st.sampled_from(["model", "tensor", "unit"]), st.floats(0.01, 50))
def test_no_norm_exceeds_its_threshold_and_what_is_below_keeps_its_bits(seed, power, per, limit):
    given_ = gradients(seed, size=3.0)
    after = treated(norm(limit, per=per, norm_type=power), given_)
    arrays = [dense64(g) for g in after]
    if per == "model":
        assert p_norm(arrays, power) <= limit * (1 + 1e-6)
    for one, two, array in zip(given_, after, arrays, strict=True):
        if per != "model":
            units = list(array) if per == "unit" and array.ndim >= 2 else [array]
            assert all(p_norm([unit], power) <= limit * (1 + 1e-6) for unit in units)
        if p_norm([dense64(g) for g in given_] if per == "model" else [dense64(one)], power) < limit:
            assert bits(one) == bits(two)


@pytest.mark.parametrize("per", ["model", "tensor"])
def test_the_direction_stays(per):
    given_ = gradients(3, torch.float64, 5.0)
    for one, two in zip(given_, treated(norm(0.1, per=per), given_), strict=True):
        a, b = dense64(one).ravel(), dense64(two).ravel()
        if a.size:
            assert a @ b == pytest.approx(np.linalg.norm(a) * np.linalg.norm(b), rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(len(SHAPES))))
def test_the_order_of_tensors_does_not_matter(order):
    given_ = gradients(1, torch.float64)
    straight = treated(norm(0.7), given_)
    mixed = treated(norm(0.7), [given_[at] for at in order])
    assert_close([dense64(straight[at]) for at in order], [dense64(g) for g in mixed], rtol=1e-12)


@pytest.mark.parametrize("per", ["model", "tensor", "unit"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_that_is_not_finite_multiplies_anything(per, bad):
    """R4: the sick tensor, or unit, is left as it is; with per="tensor" the others are clipped all the same."""
    given_ = gradients(2, size=10.0)
    given_[0][1, 2] = bad
    after = treated(norm(0.5, per=per), given_)
    touched = {at for at in range(len(given_)) if bits(given_[at]) != bits(after[at])}
    assert touched == {"model": set(), "tensor": {1, 2, 4}, "unit": {0, 1, 2, 4}}[per]
    assert bits(after[0][1]) == bits(given_[0][1])
    assert all(torch.isfinite(after[at]).all() for at in (1, 2, 4))
    if per == "unit":
        assert after[0][0].norm().item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("size", [1e25, 1e38, 1e-30])
@pytest.mark.parametrize("per", ["model", "tensor", "unit"])
def test_the_extremes_of_fp32(size, per):
    given_ = [torch.full((3, 4), size), torch.full((5,), -size)]
    after = treated(norm(1.0, per=per), given_)
    if size < 1:
        assert [bits(a) for a in after] == [bits(g) for g in given_]
    elif per == "model":
        assert p_norm([dense64(g) for g in after], 2.0) == pytest.approx(1.0, rel=1e-5)
    else:
        assert dense64(after[1]) == pytest.approx(np.full(5, -1 / math.sqrt(5)), rel=1e-5)


def test_float64s_own_extremes():
    (after,) = treated(norm(1.0), [torch.full((4,), 1e300, dtype=torch.float64)])
    assert after.tolist() == pytest.approx([0.5] * 4)


def test_infinity_measures_only():
    given_ = gradients()
    loop = Treated(norm(math.inf), [torch.zeros_like(g) for g in given_])
    assert [bits(g) for g in loop.step(given_)] == [bits(g) for g in given_]
    assert not bool(loop.decision.clipped)
    assert loop.decision.scale.item() == 1.0


def test_tensors_without_a_gradient_are_passed_over():
    given_ = [torch.tensor([3.0]), None, torch.tensor([4.0])]
    for per in ("model", "tensor", "unit"):
        one, none, two = treated(norm(1.0, per=per), given_)
        assert none is None
        assert one.item() == pytest.approx(0.6 if per == "model" else 1.0, rel=1e-5)
        assert two.item() == pytest.approx(0.8 if per == "model" else 1.0, rel=1e-5)


def test_a_step_without_any_gradient_decides_nothing():
    loop = Treated(norm(1.0), [torch.zeros(2)])
    assert loop.step([None]) == [None]
    assert loop.decision.scale.item() == 1.0


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("per", ["model", "tensor", "unit"])
def test_complex_gradients_are_measured_by_their_magnitudes(power, per):
    """R61: |3 + 4i| is 5, not 3 + 4 and not (3 + 4i)^2."""
    given_ = [torch.tensor([[3 + 4j, 0], [6j, 8]], dtype=torch.complex64)]
    (after,) = treated(norm(2.0, per=per, norm_type=power), given_)
    array = dense64(given_[0])
    if per == "unit":
        expected = np.stack([clipped([row], 2.0, power)[0] for row in array])
    else:
        expected = clipped([array], 2.0, power)[0]
    assert_close([dense64(after)], [expected], rtol=1e-6)


@pytest.mark.parametrize("per", ["model", "tensor", "unit"])
def test_under_a_loss_scale_thresholds_are_in_true_units(per):
    """R2: gradients that are still multiplied by 1024 are clipped as if they were not."""
    given_ = gradients(4, size=2.0)
    plain = treated(norm(0.7, per=per), given_)
    scaled = Treated(norm(0.7, per=per), [torch.zeros_like(g) for g in given_], loss_scale=1024.0)
    after = scaled.step([g * 1024 for g in given_])
    assert_close([dense64(g) / 1024 for g in after], [dense64(g) for g in plain], rtol=1e-5)


def test_the_word_for_infinity_is_answered_with_the_number():
    """torch's functions take the word "inf"."""
    with pytest.raises(InputError, match=r"norm_type: expected a number > 0, got 'inf'; write math\.inf"):
        norm(1.0, norm_type="inf")
