"""The one place where gradients are changed: every dtype and layout, on the host's and the device's path."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_loop import INF, NAN, bits
from clip_reference import dense64
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.clip.access import Gradients
from gradmedic.clip.apply import applied, apply_operations, scale_gradients, touched
from gradmedic.clip.operations import Limit, MomentLimit, Scale, UnitScale

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
paths = pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])


def f64(*numbers):
    return torch.tensor(numbers[0] if len(numbers) == 1 else numbers, dtype=torch.float64)


@paths
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("each", [False, True], ids=["one factor", "one for each"])
def test_products_are_rounded_once(on_host, dtype, each):
    """A factor is not rounded to bf16 before it multiplies: the result is within half an ulp of the exact product."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(500, generator=generator, dtype=torch.float64).to(dtype)
    factor = 0.7231
    held = [gradient.clone(), gradient.clone()]
    scale = f64(factor, 1.0) if each else f64(factor)
    apply_operations(held, [Scale(scale)], on_host=on_host)
    exact = dense64(gradient) * factor
    bound = {torch.complex64: 2**-23, torch.complex128: 2**-51, torch.float32: 2**-23, torch.float64: 2**-52}
    half_ulp = bound.get(dtype, torch.finfo(dtype).eps / 2 * 1.001)
    assert np.all(np.abs(dense64(held[0]) - exact) <= half_ulp * np.abs(exact) + 1e-7 * (dtype == torch.float16))
    if each:
        assert bits(held[1]) == bits(gradient)


@paths
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_of_one_changes_no_bit(on_host, dtype):
    """Subnormals, -0, NaN payloads' places and infinities included."""
    numbers = [1.0, -0.0, 1e-40, NAN, INF, -INF, 65504.0, 3e38, 5e-324]
    gradient = torch.tensor(numbers, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    for scale in (f64(1.0), f64(1.0, 1.0), f64(1.0, 0.5)):
        held = [gradient.clone(), gradient.clone()]
        apply_operations(held, [Scale(scale)], on_host=on_host)
        np.testing.assert_array_equal(dense64(held[0]), dense64(gradient))
        assert np.array_equal(np.signbit(dense64(held[0]).real), np.signbit(dense64(gradient).real))


@paths
def test_every_layout_at_once(on_host):
    """Mixed dtypes, views, 0-d, empty, sparse, None; each gets its own factor, nothing else is touched."""
    base = torch.full((4, 6), 2.0)
    sparse = torch.sparse_coo_tensor([[1, 1, 3]], [2.0, 3.0, 4.0], (5,), check_invariants=True)
    held = [
        base[:, ::2],
        torch.tensor(2.0, dtype=torch.bfloat16),
        None,
        torch.zeros(0, 3),
        sparse,
        torch.full((3,), 2.0, dtype=torch.float64).expand(3).clone().t(),
        torch.full((2, 2), 1 + 1j),
    ]
    apply_operations(held, [Scale(f64(0.5, 0.25, 9.0, 0.1, 2.0, 0.125, 0.5))], on_host=on_host)
    assert base[:, ::2].unique().tolist() == [1.0]
    assert base[:, 1::2].unique().tolist() == [2.0]
    assert held[1].item() == 0.5
    assert held[2] is None
    assert held[4].is_sparse
    assert held[4].to_dense().tolist() == [0, 10, 0, 8, 0]
    assert held[5].tolist() == [0.25] * 3
    assert held[6].flatten().tolist() == [0.5 + 0.5j] * 4
    apply_operations(held, [Scale(f64(2.0))], on_host=on_host)
    assert held[4].to_dense().tolist() == [0, 20, 0, 16, 0]
    assert base[:, ::2].unique().tolist() == [2.0]


@paths
def test_operations_are_carried_out_in_order(on_host):
    held = [torch.tensor([3.0, 0.5])]
    apply_operations(held, [Scale(f64(2.0)), Limit({0: 1.5}), Scale(f64(0.5))], on_host=on_host)
    assert held[0].tolist() == [0.75, 0.5]


@paths
@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.floats(0.01, 10.0))
def test_elements_that_are_not_finite_stay(on_host, elements, limit):
    operations = [
        Limit({0: limit}),
        UnitScale({0: f64(0.5)}, {0: None}),
        MomentLimit(4.0, {0: torch.full((len(elements),), 0.25)}),
        Scale(f64(0.5)),
    ]
    for operation in operations:
        held = [torch.tensor(elements)]
        apply_operations(held, [operation], on_host=on_host)
        before, after = np.array(elements), dense64(held[0])
        np.testing.assert_array_equal(np.isfinite(after), np.isfinite(before))
        np.testing.assert_array_equal(after[~np.isfinite(before)], before[~np.isfinite(before)])


def test_units_along_any_axis():
    gradient = torch.arange(1.0, 25.0).reshape(2, 3, 4)
    for axis, size in enumerate(gradient.shape):
        factor = f64(*(0.5 + 0.25 * at for at in range(size)))
        held = [gradient.clone()]
        apply_operations(held, [UnitScale({0: factor}, {0: axis})])
        expected = dense64(gradient) * np.expand_dims(factor.numpy(), [d for d in range(3) if d != axis])
        assert np.array_equal(dense64(held[0]), expected)


def test_units_of_tensors_that_are_not_named_are_left_alone():
    held = [torch.ones(2), torch.ones(2), None]
    apply_operations(held, [UnitScale({1: f64(0.5), 2: f64(0.5)}, {1: None, 2: None}), Limit({2: 0.1})])
    assert held[0].tolist() == [1.0, 1.0]
    assert held[1].tolist() == [0.5, 0.5]


def test_limits_of_low_precision_elements():
    """fp16 elements of 300 against v = 1: squares would be infinite in fp16, limits are computed in fp32."""
    held = [torch.tensor([300.0, 60000.0, -60000.0], dtype=torch.float16)]
    apply_operations(held, [MomentLimit(5000.0, {0: torch.full((3,), 100.0)})])
    assert held[0].tolist() == [300.0, pytest.approx(707.0, abs=0.5), pytest.approx(-707.0, abs=0.5)]


def test_a_sparse_gradient_is_coalesced_where_its_elements_are_limited():
    sparse = torch.sparse_coo_tensor([[1, 3, 1]], [3.0, 0.5, 4.0], (5,), check_invariants=True)
    apply_operations([sparse], [Limit({0: 2.0})])
    assert sparse.to_dense().tolist() == [0, 2, 0, 0.5, 0]


def test_gradients_that_require_a_gradient_and_autograd():
    """Under create_graph gradients belong to a graph: they are changed without entering it."""
    weight = torch.tensor([2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
    apply_operations([gradient], [Scale(f64(0.5)), Limit({0: 1.0})])
    assert gradient.tolist() == [1.0]


@paths
def test_a_complex_gradient_that_is_lazily_conjugated(on_host):
    held = [torch.tensor([3 + 4j, 1 - 1j]).conj()]
    apply_operations(held, [Scale(f64(0.5)), Scale(f64(1.0, 0.5)[:1]), Limit({0: 1.0})], on_host=on_host)
    assert held[0].tolist() == [1 - 1j, 0.5 + 0.5j]


@paths
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "operation",
    [
        Scale(f64(0.5)),
        Scale(f64(1.0, 0.5)[1:]),
        UnitScale({0: f64(0.5, 0.5, 1.0)}, {0: 0}),
        UnitScale({0: f64(0.5)}, {0: None}),
    ],
)
def test_complex_infinities_stay_what_they_are(operation, dtype, on_host):
    """A complex product of an infinity with a real factor would be NaN."""
    given_ = torch.tensor([complex(math.inf, 2), complex(4, -math.inf), complex(math.nan, math.inf)], dtype=dtype)
    expected = [(math.inf, 1.0), (2.0, -math.inf), (math.nan, math.inf)]
    changed, lazy = given_.clone(), given_.conj().resolve_conj().conj()
    apply_operations([changed], [operation], on_host=on_host)
    access = Gradients(None, [given_], [lazy])
    for left in (changed, applied(operation, 0, given_), access.after(operation).values(0)):
        parts = torch.view_as_real(left.resolve_conj()).tolist()
        assert parts == [pytest.approx(each, nan_ok=True) for each in expected]


def test_infinities_of_a_scaled_complex_gradient_are_divided_as_such():
    access = Gradients(None, [None], [torch.tensor([complex(math.inf, 6)])], loss_scale=f64(2.0))
    assert access.values(0).tolist() == [complex(math.inf, 3)]


def test_what_an_operation_touches():
    assert touched(Scale(f64(1.0))) == []
    assert touched(UnitScale({3: f64(1.0)}, {3: None})) == [3]
    assert touched(Limit({1: 1.0, 2: 1.0})) == [1, 2]
    assert touched(MomentLimit(1.0, {5: torch.ones(1)})) == [5]


def test_scale_gradients():
    held = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)]
    scale_gradients(held, f64(0.25))
    assert [g.tolist() for g in held] == [[0.25, 0.25]] * 2


def test_no_gradients_at_all():
    apply_operations([], [Scale(f64(0.5)), Scale(torch.zeros(0, dtype=torch.float64))])
    apply_operations([None], [Scale(f64(0.5)), Scale(torch.tensor([0.5], dtype=torch.float64)), Limit({0: 1.0})])
