"""`gm.clip_grad_norm_`: torch's on ordinary input, and right where torch's is not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from clip_reference import assert_close, clipped, dense64, p_norm, parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradmedic as gm

pytestmark = pytest.mark.filterwarnings("error")

POWERS = [1.0, 1.5, 2.0, 3.0, math.inf]
shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3)


@st.composite
def gradient_lists(draw: st.DrawFn) -> list[torch.Tensor]:
    seed = draw(st.integers(0, 2**31))
    size = draw(st.floats(1e-3, 1e3))
    generator = torch.Generator().manual_seed(seed)
    number = draw(st.integers(1, 4))
    return [torch.randn(draw(shapes), generator=generator, dtype=torch.float64) * size for _ in range(number)]


@settings(deadline=None, max_examples=60)
@given(gradients=gradient_lists(), power=st.sampled_from(POWERS), share=st.floats(1e-3, 10.0))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_as_torch_on_ordinary_input(dtype, gradients, power, share):
    """Norm and gradients agree with torch's formula in float64, and with torch itself, to 1e-6 relative."""
    gradients = [gradient.to(dtype) for gradient in gradients]
    arrays = [dense64(gradient) for gradient in gradients]
    limit = share * p_norm(arrays, power) + 1e-9
    ours, theirs = parameters(gradients), parameters([gradient.double() for gradient in gradients])
    total = gm.clip_grad_norm_(ours, limit, norm_type=power)
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit, norm_type=power)
    assert total.dtype == dtype
    assert total.shape == ()
    assert total.item() == pytest.approx(p_norm(arrays, power), rel=1e-6)
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    after = [dense64(p.grad) for p in ours]
    # Between the threshold and the threshold less 1e-6 torch shrinks by that 1e-6, and this one leaves the bits alone.
    slack = 1e-6 + 1e-6 / limit
    assert_close(after, clipped(arrays, limit, power), rtol=slack, atol=0)
    assert_close(after, [dense64(p.grad) for p in theirs], rtol=slack, atol=0)


@settings(deadline=None, max_examples=40)
@given(gradients=gradient_lists(), power=st.sampled_from(POWERS), excess=st.floats(1.001, 100.0))
def test_below_the_threshold_every_bit_stays(gradients, power, excess):
    gradients = [gradient.float() for gradient in gradients]
    ours = parameters(gradients)
    gm.clip_grad_norm_(ours, excess * p_norm([dense64(g) for g in gradients], power) + 1e-9, norm_type=power)
    assert [p.grad.numpy().tobytes() for p in ours] == [g.numpy().tobytes() for g in gradients]


@settings(deadline=None, max_examples=40)
@given(gradients=gradient_lists(), power=st.sampled_from(POWERS), share=st.floats(0.01, 0.9))
def test_clipping_reaches_the_bound_keeps_the_direction_and_is_idempotent(gradients, power, share):
    arrays = [dense64(gradient) for gradient in gradients]
    norm = p_norm(arrays, power)
    limit = share * norm + 1e-3
    ours = parameters(gradients)
    gm.clip_grad_norm_(ours, limit, norm_type=power)
    after = [dense64(p.grad) for p in ours]
    assert p_norm(after, power) <= limit * (1 + 1e-12)
    one, two = (np.concatenate([array.ravel() for array in each]) for each in (arrays, after))
    assert one @ two == pytest.approx(np.sqrt((one @ one) * (two @ two)), rel=1e-9)
    gm.clip_grad_norm_(ours, limit, norm_type=power)
    assert_close([dense64(p.grad) for p in ours], after, rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(gradients=gradient_lists(), power=st.sampled_from(POWERS), seed=st.integers(0, 100))
def test_the_order_of_the_list_does_not_matter(gradients, power, seed):
    order = np.random.default_rng(seed).permutation(len(gradients))
    one, two = parameters(gradients), parameters([gradients[at] for at in order])
    totals = [gm.clip_grad_norm_(each, 0.5, norm_type=power).item() for each in (one, two)]
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)
    assert_close([dense64(one[at].grad) for at in order], [dense64(p.grad) for p in two], rtol=1e-12)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_sick_gradient_leaves_the_others_alone(value, power):
    """R4: torch spreads a NaN to every gradient and zeroes all others for an inf; here every bit stays."""
    gradients = [torch.full((3,), 5.0), torch.tensor([1.0, value, 2.0]), torch.full((2, 2), -7.0)]
    ours = parameters(gradients)
    total = gm.clip_grad_norm_(ours, 1.0, norm_type=power)
    assert math.isnan(total.item()) if math.isnan(value) else total.item() == math.inf
    assert [p.grad.numpy().tobytes() for p in ours] == [g.numpy().tobytes() for g in gradients]


def test_the_sick_gradients_are_named_on_request():
    """R4: with error_if_nonfinite the message says how many elements, in which places; nothing was changed."""
    gradients = [torch.ones(3), torch.tensor([math.nan, math.inf]), torch.ones(2), torch.tensor([-math.inf])]
    ours = parameters(gradients)
    with pytest.raises(RuntimeError, match=r"3 gradient elements .* places 1, 3 "):
        gm.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    assert [p.grad.numpy().tobytes() for p in ours] == [g.numpy().tobytes() for g in gradients]
    fine = parameters([torch.ones(4)])
    assert gm.clip_grad_norm_(fine, 1.0, error_if_nonfinite=True).item() == 2.0


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("size", [1e20, 1e25, 1e-20])
def test_huge_and_tiny_finite_gradients_are_scaled_to_the_bound(size, power):
    """R4: torch's fp32 norm of 1e20 is infinite, and all gradients become 0; here they are clipped."""
    gradients = [torch.full((10,), size), torch.full((3, 2), -2 * size)]
    arrays = [dense64(gradient) for gradient in gradients]
    ours = parameters(gradients)
    total = gm.clip_grad_norm_(ours, 1.0, norm_type=power)
    assert total.item() == pytest.approx(p_norm(arrays, power), rel=1e-6)
    assert_close([dense64(p.grad) for p in ours], clipped(arrays, 1.0, power), rtol=1e-5, atol=0)
    if size > 1:
        assert p_norm([dense64(p.grad) for p in ours], power) == pytest.approx(1.0, rel=1e-5)


def test_a_norm_beyond_fp32_is_still_clipped():
    """R4: a hundred elements of 1e38: the norm does not fit into fp32, the clip is right all the same."""
    ours = parameters([torch.full((100,), 1e38)])
    gm.clip_grad_norm_(ours, 1.0)
    assert p_norm([dense64(p.grad) for p in ours], 2.0) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_lists_are_measured_in_fp32_or_better(dtype):
    """R60: twenty fp16 tensors of 2e4, and a thousand bf16 elements; returned in fp32."""
    for gradients in ([torch.full((1,), 2e4, dtype=dtype)] * 20, [torch.rand(1000).to(dtype)]):
        arrays = [dense64(gradient) for gradient in gradients]
        ours = parameters(gradients)
        total = gm.clip_grad_norm_(ours, 1.0)
        assert total.dtype == torch.float32
        assert total.item() == pytest.approx(p_norm(arrays, 2.0), rel=1e-6)
        assert {p.grad.dtype for p in ours} == {dtype}
        assert_close([dense64(p.grad) for p in ours], clipped(arrays, 1.0), rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("power", POWERS)
def test_mixed_dtypes_in_one_list(power):
    """R60: fp16, bf16, fp32, fp64 and complex together; each keeps its dtype; the norm comes in fp64 for fp64."""
    draw = torch.Generator().manual_seed(0)
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    gradients = [torch.randn(6, generator=draw).to(kind) for kind in kinds]
    gradients.append(torch.randn(4, generator=draw, dtype=torch.complex64))
    arrays = [dense64(gradient) for gradient in gradients]
    ours = parameters(gradients)
    total = gm.clip_grad_norm_(ours, 0.5, norm_type=power)
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(p_norm(arrays, power), rel=1e-6)
    assert [p.grad.dtype for p in ours] == [*kinds, torch.complex64]
    assert_close([dense64(p.grad) for p in ours], clipped(arrays, 0.5, power), rtol=2**-7)


@pytest.mark.parametrize("power", POWERS)
def test_sparse_gradients_with_duplicates(power):
    """Duplicate rows count as their sum; the sparse gradient stays sparse and is scaled like the others."""
    rows = torch.sparse_coo_tensor([[1, 1, 4]], [[3.0, 1.0], [2.0, -5.0], [6.0, 2.0]], (6, 2), check_invariants=True)
    dense = torch.tensor([1.0, -2.0])
    arrays = [dense64(rows), dense64(dense)]
    table, other = nn.Parameter(torch.zeros(6, 2)), nn.Parameter(torch.zeros(2))
    table.grad, other.grad = rows.clone(), dense.clone()
    total = gm.clip_grad_norm_([table, other], 0.5, norm_type=power)
    assert total.item() == pytest.approx(p_norm(arrays, power), rel=1e-6)
    assert table.grad.is_sparse
    assert_close([dense64(table.grad), dense64(other.grad)], clipped(arrays, 0.5, power))


def test_gradients_that_are_views_transposed_or_empty():
    base = torch.arange(24.0).reshape(4, 6)
    gradients = [base.t()[::2], base[:, ::3], torch.zeros(0, 3), torch.tensor(2.0)]
    arrays = [dense64(gradient) for gradient in gradients]
    held = [nn.Parameter(torch.zeros(g.shape)) for g in gradients]
    for parameter, gradient in zip(held, gradients, strict=True):
        # a gradient that is a part of something larger, whose rest must not be touched
        big = torch.full((*gradient.shape, 2), 9.0) if gradient.dim() else torch.full((2,), 9.0)
        big[..., 0] = gradient
        parameter.grad = big[..., 0]
    total = gm.clip_grad_norm_(held, 1.0)
    assert total.item() == pytest.approx(p_norm(arrays, 2.0), rel=1e-6)
    assert_close([dense64(p.grad) for p in held], clipped(arrays, 1.0))
    assert all(bool((p.grad._base[..., 1] == 9.0).all()) for p in held if p.grad._base is not None)


def test_a_tensor_listed_twice_counts_once():
    """R23: duplicates in a list: the norm over unique tensors, and each scaled once."""
    one, two = parameters([torch.tensor([3.0, 4.0]), torch.tensor([12.0])])
    assert gm.clip_grad_norm_([one, two, one, one], 1.0).item() == pytest.approx(13.0)
    assert_close([dense64(one.grad), dense64(two.grad)], clipped([np.array([3.0, 4.0]), np.array([12.0])], 1.0))


def test_a_single_tensor_and_a_generator_are_fine():
    """R26: whatever is iterated over is read once."""
    (alone,) = parameters([torch.tensor([3.0, 4.0])])
    assert gm.clip_grad_norm_(alone, 1.0).item() == 5.0
    assert dense64(alone.grad) == pytest.approx([0.6, 0.8], rel=1e-5)
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    gm.clip_grad_norm_(model.parameters(), 0.1)
    assert p_norm([dense64(p.grad) for p in model.parameters()], 2.0) == pytest.approx(0.1, rel=1e-4)
    gm.clip_grad_norm_((p for p in model.parameters()), 0.01)
    assert p_norm([dense64(p.grad) for p in model.parameters()], 2.0) == pytest.approx(0.01, rel=1e-3)


def used_up(model: nn.Module) -> Iterator[nn.Parameter]:
    generator = model.parameters()
    list(generator)
    return generator


def test_a_generator_that_is_used_up_warns_at_the_callers_line():
    """R26: nothing is clipped, which is said, and 0 is returned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert gm.clip_grad_norm_(used_up(nn.Linear(2, 2)), 1.0).item() == 0.0
    assert [str(each.message).split(":")[0] for each in caught] == ["clip_grad_norm_"]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("held", [[], parameters([None, None])], ids=["an empty list", "no gradients"])
def test_without_gradients_the_norm_is_zero_and_nothing_is_said(held):
    """R26: a list of parameters whose gradients are None is no error."""
    assert gm.clip_grad_norm_(held, 1.0).item() == 0.0


def test_parameters_without_a_gradient_are_passed_over():
    one, none, two = parameters([torch.tensor([3.0]), None, torch.tensor([4.0])])
    assert gm.clip_grad_norm_([one, none, two], 1.0).item() == 5.0
    assert none.grad is None


@pytest.mark.parametrize("limit", [-1.0, -math.inf, 0.0, math.nan, "much", None])
def test_a_threshold_that_makes_no_sense_is_an_error_and_changes_nothing(limit):
    """R62: torch reverses the gradients for -1, zeroes them for 0 and poisons them for NaN."""
    ours = parameters([torch.tensor([3.0, 4.0])])
    with pytest.raises(gm.InputError, match="max_norm: expected a number > 0"):
        gm.clip_grad_norm_(ours, limit)
    assert ours[0].grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("power", [-1.0, math.nan, "l2"])
def test_a_norm_type_that_makes_no_sense_is_an_error(power):
    with pytest.raises(gm.InputError, match="norm_type"):
        gm.clip_grad_norm_(parameters([torch.ones(2)]), 1.0, norm_type=power)


def test_thresholds_of_other_types_and_infinity():
    """R62: tensors are accepted; infinity measures only."""
    ours = parameters([torch.tensor([3.0, 4.0])])
    assert gm.clip_grad_norm_(ours, math.inf).item() == 5.0
    assert ours[0].grad.tolist() == [3.0, 4.0]
    gm.clip_grad_norm_(ours, torch.tensor(1.0))
    assert dense64(ours[0].grad) == pytest.approx([0.6, 0.8], rel=1e-5)
    gm.clip_grad_norm_(ours, max_norm=1, norm_type="inf")
    assert dense64(ours[0].grad) == pytest.approx([0.6, 0.8], rel=1e-5)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_it_is_called_as_torchs_is(foreach):
    """Positional and keyword arguments of torch's signature; a plain tensor without a graph comes back."""
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    ours, theirs = parameters(gradients), parameters(gradients)
    total = gm.clip_grad_norm_(ours, 2.0, 2.0, False, foreach)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 2.0, 2.0, False, foreach)
    assert type(total) is torch.Tensor
    assert not total.requires_grad
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert_close([dense64(p.grad) for p in ours], [dense64(p.grad) for p in theirs], rtol=1e-6)


def test_at_the_threshold_torchs_formula_holds():
    """Exactly at it torch's 1e-6 shrinks a little; below, every bit stays."""
    for limit, expected in ((5.0, 3.0 * 5.0 / (5.0 + 1e-6)), (5.0000001, 3.0)):
        ours = parameters([torch.tensor([3.0, 4.0], dtype=torch.float64)])
        gm.clip_grad_norm_(ours, limit)
        assert ours[0].grad[0].item() == pytest.approx(expected, rel=1e-12)
