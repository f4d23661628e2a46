"""The kernels that change gradients, in Triton's interpreter; run by test_triton_backend.py in a process of its own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.clip import on_device
from gradmedic.clip.apply import applied, apply_operations
from gradmedic.clip.operations import Limit, MomentLimit, Scale, UnitScale
from gradmedic.stats import device, triton_treatment
from gradmedic.stats.triton_backend import TritonStats
from gradmedic.stats.triton_treatment import TritonTreatment

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SPECIALS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -3.0)
#: Shapes, and the axis of their units; some units are longer than a block of 4,096, some are cut by its end.
LAYOUTS = (
    ((5, 7), 0), ((5, 7), 1), ((3, 4, 5), 1), ((3, 5000), 0), ((4100, 3), 0), ((2, 3, 2100), 1), ((17,), None),
    ((0, 3), 0), ((), None), ((3, 3, 2), 2), ((1, 9000), 0), ((9000, 1), 0),
)  # fmt: skip


def bits(tensor):
    return tensor.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()])


def made(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if x.numel():
        at = torch.randint(0, x.numel(), (min(4, x.numel()),), generator=generator)
        chosen = torch.randint(0, len(SPECIALS), (len(at),), generator=generator)
        x.view(-1)[at] = torch.tensor(SPECIALS, dtype=torch.float64)[chosen]
    return x.to(dtype)


def assert_products(got, before, factors):
    """Elements with a factor of 1 keep their bits; others are the product in float64, rounded once or twice."""
    kept = factors == 1
    assert torch.equal(bits(got)[kept], bits(before)[kept])
    # Products are taken in float32; and the interpreter cuts bf16 off where cards round.
    tolerance = {torch.float64: 0.0, torch.float32: 1.2e-7}.get(got.dtype, torch.finfo(got.dtype).eps)
    smallest = torch.finfo(got.dtype).smallest_normal * tolerance
    expected = before.double() * factors
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=smallest, equal_nan=True)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Kernels that have not failed, so that what a test sees is their work."""
    kernels = device.Kernels()
    monkeypatch.setattr(device, "kernels", kernels)
    monkeypatch.setattr(on_device, "kernels", kernels)
    return kernels


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 5, 4096, 5000]), st.sampled_from(DTYPES)), min_size=1, max_size=5),
    st.integers(0, 1000),
)
@settings(max_examples=8, deadline=None)
def test_each_tensor_is_multiplied_by_its_own_factor(kinds, seed):
    tensors = [made((n,), dtype, seed + at) for at, (n, dtype) in enumerate(kinds)]
    before = [tensor.clone() for tensor in tensors]
    generator = torch.Generator().manual_seed(seed)
    factors = torch.rand(len(kinds), generator=generator, dtype=torch.float64).mul(4).round().div(3)
    done: set[int] = set()
    TritonStats().treatment.scale(tensors, factors, done)
    assert done == set(range(len(kinds)))
    for tensor, other, factor in zip(tensors, before, factors, strict=True):
        assert_products(tensor, other, factor.expand(other.shape))


@given(
    st.lists(st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(DTYPES)), min_size=1, max_size=4), st.integers(0, 1000)
)
@settings(max_examples=20, deadline=None)
def test_each_unit_is_multiplied_by_its_own_factor(kinds, seed):
    generator = torch.Generator().manual_seed(seed)
    gradients, factors, dims, wide = [], {}, {}, []
    for at, ((shape, axis), dtype) in enumerate(kinds):
        gradients.append(made(shape, dtype, seed + at))
        units = () if axis is None else (shape[axis],)
        factors[at] = torch.rand(units, generator=generator, dtype=torch.float64).mul(3).ceil().div(3)
        dims[at] = axis
        sized = [-1 if place == axis else 1 for place in range(len(shape))]
        wide.append((factors[at] if axis is None else factors[at].reshape(sized)).expand(shape))
    before = [gradient.clone() for gradient in gradients]
    launched = device.kernels._stats.launches
    apply_operations(gradients, [UnitScale(factors, dims)], on_host=False)
    assert device.kernels.problem is None
    assert device.kernels._stats.launches > launched or not any(gradient.numel() for gradient in gradients)
    for gradient, other, factor in zip(gradients, before, wide, strict=True):
        assert_products(gradient, other, factor)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 7, 4096, 9001]), st.sampled_from(DTYPES)), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.sampled_from([None, 1.0, 4.0]),
)
@settings(max_examples=12, deadline=None)
def test_limits_clamp_what_is_beyond_them_and_write_nothing_else(kinds, seed, loss_scale):
    gradients = [made((n,), dtype, seed + at) for at, (n, dtype) in enumerate(kinds)]
    before = [gradient.clone() for gradient in gradients]
    limits = {at: (0.5, 0.25, 1.0)[at % 3] for at in range(len(kinds))}
    scale = None if loss_scale is None else torch.tensor(loss_scale)
    apply_operations(gradients, [Limit(limits)], on_host=False, loss_scale=scale)
    assert device.kernels.problem is None
    for at, (gradient, other) in enumerate(zip(gradients, before, strict=True)):
        limit = limits[at] * (loss_scale or 1.0)
        within = ~(other.double().abs() > limit) | other.isinf()
        assert torch.equal(bits(gradient)[within], bits(other)[within])
        assert torch.equal(gradient[~within].double(), other[~within].double().sign() * limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("moment_type", [torch.float32, torch.bfloat16])
def test_moments_bound_squares_and_unknown_ones_bound_nothing(dtype, moment_type):
    gradient = made((5000,), dtype, 3)
    moment = torch.rand(5000, generator=torch.Generator().manual_seed(4)).to(moment_type)
    moment[::5] = 0.0
    moment[1] = math.nan
    before = gradient.clone()
    gradients = [None, gradient]
    apply_operations(gradients, [MomentLimit(0.5, {0: moment, 1: moment})], on_host=False)
    assert device.kernels.problem is None
    assert device.kernels._stats.treatment.launches == 1
    limit = torch.where(moment.double() > 0, (moment.double() * 0.5).sqrt(), math.inf)
    close = torch.finfo(dtype).eps * 1.01 if dtype != torch.float64 else 1e-15
    finite = before.isfinite()
    expected = torch.minimum(torch.maximum(before.double(), -limit), limit)
    torch.testing.assert_close(gradient.double()[finite], expected[finite], rtol=close, atol=0.0)
    assert torch.equal(bits(gradient)[~finite], bits(before)[~finite])


def test_the_kernel_and_torch_agree_in_float32():
    gradient, moment = made((40, 300), torch.float32, 9), torch.rand(40, 300)
    factors = torch.rand(40, dtype=torch.float64).mul(2).clamp(max=1.0)
    ulp = torch.finfo(torch.float32).eps  # of a root: torch's own is not that of a card either
    for operation, close in (
        (UnitScale({0: factors}, {0: 0}), 0.0),
        (Limit({0: 0.3}), 0.0),
        (MomentLimit(0.7, {0: moment}), ulp),
    ):
        got = gradient.clone()
        apply_operations([got], [operation], on_host=False)
        torch.testing.assert_close(got, applied(operation, 0, gradient), rtol=close, atol=0.0, equal_nan=True)
    assert device.kernels._stats.treatment.launches == 3


def test_a_clip_by_one_factor_and_by_many_uses_the_kernel(fresh):
    gradients = [torch.full((3,), 2.0), torch.full((5,), 4.0)]
    apply_operations(gradients, [Scale(torch.tensor(0.5, dtype=torch.float64))], on_host=False)
    apply_operations(gradients, [Scale(torch.tensor([1.0, 0.5], dtype=torch.float64))], on_host=False)
    assert fresh._stats.treatment.launches == 2
    assert gradients[0].tolist() == [1.0] * 3
    assert gradients[1].tolist() == [1.0] * 5
    assert [gradient._version for gradient in gradients] == [2, 2]  # autograd has been told


def test_what_no_kernel_can_change_is_changed_by_torch_beside_them(fresh):
    gradients = [torch.ones(4, 6), torch.ones(6, 4).T, torch.ones(3, 2, dtype=torch.complex64)]
    factors = {at: torch.full((g.shape[0],), 0.5, dtype=torch.float64) for at, g in enumerate(gradients)}
    apply_operations(gradients, [UnitScale(factors, dict.fromkeys(range(3), 0))], on_host=False)
    assert fresh._stats.treatment.launches == 1
    assert all(bool((gradient == 0.5).all()) for gradient in gradients)


class FailsAt:
    """A kernel whose launches fail from the second one on."""

    def __init__(self, kernel):
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid):
        self.launches += 1
        if self.launches > 1:
            raise RuntimeError("no registers left")
        return self.kernel[grid]


def test_a_launch_that_fails_leaves_the_rest_to_torch_and_nothing_is_scaled_twice(fresh, monkeypatch, caplog):
    real = triton_treatment.kernels()
    failing = type("Failing", (), {"scale_chunks": FailsAt(real.scale_chunks)})
    monkeypatch.setattr(triton_treatment, "kernels", lambda: failing)
    gradients = [torch.ones(3), torch.ones(3).half(), torch.ones(3, dtype=torch.float64)]
    for _ in range(2):
        apply_operations(gradients, [Scale(torch.tensor(0.5, dtype=torch.float64))], on_host=False)
    assert [gradient.tolist() for gradient in gradients] == [[0.25] * 3] * 3
    assert "no registers left" in (fresh.problem or "")
    assert len(caplog.records) == 1


def test_layouts_and_limits_are_sent_once(fresh, monkeypatch):
    sent = []
    real = triton_treatment.send
    monkeypatch.setattr(triton_treatment, "send", lambda values, at: sent.append(len(values)) or real(values, at))
    gradient, factors = torch.ones(4, 6), torch.full((4,), 0.5, dtype=torch.float64)
    for _ in range(3):
        apply_operations([gradient], [UnitScale({0: factors}, {0: 0}), Limit({0: 0.1})], on_host=False)
    assert len(sent) == 4


def test_small_tables_do_not_pile_up(fresh):
    treatment: TritonTreatment = fresh._stats.treatment
    for number in range(20):
        treatment.limit([torch.ones(2)], [1.0 + number], set())
    assert len(treatment._small) <= 8
