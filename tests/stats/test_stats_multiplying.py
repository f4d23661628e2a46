"""Multiplying in place by the compiled extension: torch's bits, and torch knows of it; collected where it is built."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.stats import native

INF, NAN = math.inf, math.nan


def many(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return pieces of every size, some of which are parted among items of work and threads."""
    generator = torch.Generator().manual_seed(0)
    sizes = (5_000_003, 7, 0, 400_000, *[100] * 200, 131_072, 131_073)
    return [torch.randn(n, generator=generator, dtype=dtype) for n in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_bits_are_those_of_torch_on_any_number_of_threads(dtype, threads, monkeypatch):
    monkeypatch.setattr(native, "_threads", lambda: threads)
    ours, theirs = many(dtype), many(dtype)
    factors = [0.1 + 0.37 * at for at in range(len(ours))]
    assert native.multiply(ours, factors) == []
    for mine, other, factor in zip(ours, theirs, factors, strict=True):
        assert torch.equal(mine, other.mul_(factor))


@settings(deadline=None)
@given(
    numbers=st.lists(st.floats(width=32) | st.sampled_from([INF, -INF, NAN, 0.0, -0.0, 1e-45, 3e38]), max_size=40),
    factor=st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1.0, 1e-300, 1e300]),
    wide=st.booleans(),
)
def test_the_bits_are_those_of_torch_for_any_value(numbers, factor, wide):
    dtype = torch.float64 if wide else torch.float32
    ours, theirs = torch.tensor(numbers, dtype=dtype), torch.tensor(numbers, dtype=dtype)
    native.multiply([ours], [factor])
    # torch refuses Python numbers that its type of the elements cannot hold; a product is infinite then, or NaN for 0
    torch._foreach_mul_([theirs], torch.tensor(factor, dtype=torch.float64).to(dtype).item())
    if factor != 1.0:
        assert torch.equal(ours.nan_to_num(nan=7.0), theirs.nan_to_num(nan=7.0))
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.signbit()[~ours.isnan()], theirs.signbit()[~theirs.isnan()])
    else:
        assert ours.numpy().tobytes() == torch.tensor(numbers, dtype=dtype).numpy().tobytes()


def test_what_cannot_be_changed_in_place_is_named_and_left_alone():
    class Wrapped(torch.Tensor):
        pass

    odd = [
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(4, 4).t()[1:],
        torch.ones(3).to_sparse(),
        torch.ones(3).as_subclass(Wrapped),
        torch.empty(3, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj().imag,  # its sign is kept aside
    ]
    before = [each.clone() for each in odd[:6]]
    plain = torch.ones(3)
    assert native.multiply([*odd, plain], [2.0] * 9) == list(range(8))
    assert plain.tolist() == [2.0] * 3
    for tensor, former in zip(odd[:6], before, strict=True):
        assert torch.equal(tensor.to_dense(), former.to_dense())


def test_autograd_hears_of_every_change_and_of_no_other():
    changed, left = torch.ones(3), torch.ones(3, dtype=torch.bfloat16)
    native.multiply([changed, left], [2.0, 2.0])
    assert (changed._version, left._version) == (1, 0)
    weight = torch.ones(3, requires_grad=True)
    held = torch.full((3,), 2.0)
    product = weight * held
    native.multiply([held], [0.5])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_nothing_beside_a_view_is_touched():
    base = torch.ones(300_000)
    native.multiply([base[100:-100], base[:50]], [3.0, 5.0])
    expected = torch.ones(300_000)
    expected[100:-100] *= 3.0
    expected[:50] *= 5.0
    assert torch.equal(base, expected)


def test_what_several_tensors_share_is_multiplied_by_each_of_them(monkeypatch):
    monkeypatch.setattr(native, "_threads", lambda: 4)
    for _ in range(5):
        base = torch.ones(12_000_000)
        views = [base, base[1_000:], base.view(3_000, 4_000), base[:0]]
        assert native.multiply(views, [0.5] * 4) == []
        assert base[:1_000].eq(0.25).all()
        assert base[1_000:].eq(0.125).all()


def test_callers_on_several_threads_do_not_disturb_each_other():
    lists = [many(torch.float32) for _ in range(3)]
    callers = [threading.Thread(target=native.multiply, args=(each, [0.5] * len(each))) for each in lists]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for each in lists:
        assert all(torch.equal(mine, other * 0.5) for mine, other in zip(each, many(torch.float32), strict=True))


def test_without_the_extension_all_is_left(monkeypatch):
    tensor = torch.ones(2)
    monkeypatch.setattr(native, "_native", None)
    assert native.multiply([tensor], [2.0]) == [0]
    assert tensor.tolist() == [1.0, 1.0]
