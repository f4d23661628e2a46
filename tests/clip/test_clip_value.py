"""Clipping by value: every element by itself, and what is not finite stays so."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_loop import Treated, bits, treated
from clip_reference import assert_close, dense64
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.clip import chain, norm, value
from gradmedic.clip.apply import apply_operations

NAN, INF = math.nan, math.inf


def test_known_values():
    """torch turns an infinity into the limit, which hides an overflow from all who look for it later."""
    (after,) = treated(value(0.5), [torch.tensor([-2.0, 0.1, INF, -INF, NAN, -0.0, 0.5])])
    np.testing.assert_array_equal(dense64(after), [-0.5, np.float32(0.1), INF, -INF, NAN, -0.0, 0.5])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_against_numpy(elements, limit):
    given_ = torch.tensor(elements)
    array = dense64(given_)
    (after,) = treated(value(limit), [given_])
    expected = np.where(np.isfinite(array), np.clip(array, -np.float32(limit), np.float32(limit)), array)
    np.testing.assert_array_equal(dense64(after), expected)


def test_untouched_tensors_keep_their_bits_and_clipped_is_told():
    given_ = [torch.tensor([0.1, -0.2]), torch.tensor([3.0, 0.1])]
    loop = Treated(value(0.5), [torch.zeros(2)] * 2)
    after = loop.step(given_)
    assert bits(after[0]) == bits(given_[0])
    assert bool(loop.decision.clipped)
    loop.step([given_[0], given_[0]])
    assert not bool(loop.decision.clipped)
    assert loop.decision.operations == ()


def test_complex_elements_by_their_parts():
    """R61: torch's value clip raises."""
    (after,) = treated(value(1.0), [torch.tensor([3 + 0.5j, -0.2 - 7j, complex(NAN, 2)], dtype=torch.complex64)])
    parts = torch.view_as_real(after).tolist()
    assert parts[:2] == [[1.0, 0.5], [pytest.approx(-0.2), -1.0]]
    assert math.isnan(parts[2][0])
    assert parts[2][1] == 1.0


@pytest.mark.parametrize("coalesced", [True, False])
def test_sparse_elements_are_sums_of_their_parts(coalesced):
    """Two parts of .4 are an element of .8, which is clipped to .5; the gradient stays sparse."""
    sparse = torch.sparse_coo_tensor([[1, 1, 3]], [[0.4, 0.1], [0.4, -0.1], [0.3, -9.0]], (5, 2), check_invariants=True)
    if coalesced:
        sparse = sparse.coalesce()
    (after,) = treated(value(0.5), [sparse])
    assert after.is_sparse
    expected = np.clip(dense64(sparse), -0.5, 0.5)
    assert_close([dense64(after)], [expected], rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    given_ = torch.tensor([-2.0, 0.3, 7.0, NAN, INF], dtype=dtype)
    (after,) = treated(value(0.5), [given_])
    assert after.dtype == dtype
    np.testing.assert_array_equal(dense64(after), [-0.5, dense64(given_)[1], 0.5, NAN, INF])


def test_empty_and_scalar_tensors():
    empty, scalar = treated(value(0.5), [torch.zeros(0, 3), torch.tensor(-4.0)])
    assert empty.shape == (0, 3)
    assert scalar.item() == -0.5


def test_views_are_changed_in_place():
    base = torch.full((4, 6), 3.0)
    part = base[:, ::2]
    loop = Treated(value(1.0), [torch.zeros(4, 3)])
    loop.step([part])
    apply_operations([part], loop.decision.operations)
    assert base[:, ::2].unique().tolist() == [1.0]
    assert base[:, 1::2].unique().tolist() == [3.0]


def test_under_a_loss_scale_the_limit_is_in_true_units():
    loop = Treated(value(0.5), [torch.zeros(2)], loss_scale=8.0)
    (after,) = loop.step([torch.tensor([6.0, 1.0])])
    assert after.tolist() == [4.0, 1.0]


def test_a_norm_after_it_sees_the_clamped_gradients():
    (after,) = treated(chain(value(1.0), norm(1.0)), [torch.tensor([100.0, 1.0])])
    assert after.tolist() == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-5)
