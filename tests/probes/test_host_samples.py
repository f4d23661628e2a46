"""The kernel's sampled coordinates against elements picked one by one, and its sums against numpy's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.probes.samples import CoordinateSampler, choose_stride
from gradmedic.stats import native

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((), (0,), (3,), (64,), (33, 7), (300, 41), (20_011,), (2, 3, 5, 7), (1, 5000))


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values * 10.0 ** (seed % 5 - 2)).to(dtype)


def picked(tensor: torch.Tensor, total: int, position: int) -> np.ndarray:
    if not tensor.numel():
        return np.zeros(0)
    stride = choose_stride(tensor.numel(), tensor.shape, total, position)
    flat = tensor.double().reshape(-1).numpy()
    runs = [flat[start : start + stride.run] for start in stride.offset + stride.step * np.arange(stride.count)]
    return np.concatenate(runs)


tensors_strategy = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=6)


@given(tensors_strategy, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_every_mixture_of_types_is_read_and_compared(kinds, seed):
    before = [filled(shape, dtype, seed + at) for at, (shape, dtype) in enumerate(kinds)]
    after = [tensor + filled(tuple(tensor.shape), tensor.dtype, seed + 7 + at) for at, tensor in enumerate(before)]
    sampler = CoordinateSampler(before)
    one, other = sampler.read(before), sampler.read(after)
    wide = any(dtype == torch.float64 for _, dtype in kinds)
    assert one.dtype == (torch.float64 if wide else torch.float32)
    update, unchanged = sampler.compare(one, other)
    cosine = sampler.cosine(one, other)
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        a, b = picked(old, len(before), at), picked(new, len(before), at)
        if not a.size:
            assert np.isnan(unchanged[at].item())
            continue
        size = np.sqrt(np.square(b - a).sum() * old.numel() / a.size)
        assert update[at].item() == pytest.approx(size, rel=1e-9)
        assert unchanged[at].item() == pytest.approx((a == b).mean())
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        if norms:
            assert cosine[at].item() == pytest.approx(float(a @ b) / norms, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_of_a_type_comes_as_it_is(dtype):
    extremes = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan")]).to(dtype)
    info = torch.finfo(dtype)
    edges = torch.tensor([info.max, info.min, info.tiny, info.smallest_normal, info.eps], dtype=dtype)
    if dtype.itemsize == 2:
        edges = torch.cat([edges, torch.arange(-(2**15), 2**15, 3, dtype=torch.int16).view(dtype)[:4000]])
    tensor = torch.cat([extremes, edges])[:4096]
    values = CoordinateSampler([tensor]).read([tensor]).double()
    assert torch.equal(values.nan_to_num(7.25e300), tensor.double().nan_to_num(7.25e300))


def test_a_spread_of_nan_and_infinity_stays_with_its_own_tensor():
    calm, wild = torch.ones(50), torch.full((50,), float("nan"))
    sampler = CoordinateSampler([wild, calm, wild])
    update, unchanged = sampler.compare(sampler.read([wild, calm, wild]), sampler.read([wild, calm + 1, -wild]))
    assert update[1].item() == pytest.approx(np.sqrt(50.0))
    assert unchanged.tolist() == [0.0, 0.0, 0.0]
    assert torch.isnan(update[[0, 2]]).all()


def test_what_the_kernel_cannot_read_in_place_is_read_beside_it():
    plain, turned = torch.randn(300, 50), torch.randn(50, 300).T
    gaps = torch.randn(300, 100)[:, ::2]
    tensors = [plain, turned, gaps]
    sampler = CoordinateSampler([plain, turned.contiguous(), gaps.contiguous()])
    values = sampler.read(tensors)
    assert values.numel() == sum(choose_stride(t.numel(), t.shape, 3, at).elements for at, t in enumerate(tensors))
    assert torch.isin(values, torch.cat([t.reshape(-1) for t in tensors])).all()


def test_a_tensor_of_another_size_is_not_read_beyond_its_end():
    small, large = torch.nn.Parameter(torch.ones(10)), torch.nn.Parameter(torch.ones(50_000))
    sampler = CoordinateSampler([large, small])
    with torch.no_grad():
        large.set_(torch.ones(3))
    values = sampler.read([torch.ones(50_000), small])
    assert values.eq(1.0).all()
    assert (sampler._host is not None) == native.samples_available()
    assert sampler._host is None or sampler._host.read([large, small], sampler._piece) is None


def test_without_the_kernel_the_same_coordinates_are_read(monkeypatch):
    tensors = [torch.randn(300, 41), torch.randn(5), torch.randn(20_011).bfloat16()]
    with_kernel = CoordinateSampler(tensors).read(tensors)
    monkeypatch.setattr(native, "_native", None)
    sampler = CoordinateSampler(tensors)
    assert torch.equal(sampler.read(tensors), with_kernel)
    assert torch.equal(sampler.compare(with_kernel, with_kernel)[1], torch.ones(3, dtype=torch.float64))
