"""Sampled coordinates: exact for small tensors, close for large ones, fair to every row and column, of any layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.probes.samples import MAX_PER_TENSOR, MAX_TOTAL, RUN, CoordinateSampler, choose_stride

shapes = st.lists(st.integers(1, 64), min_size=0, max_size=4).filter(lambda shape: math.prod(shape) <= 200_000)


@settings(deadline=None, max_examples=200)
@given(shape=shapes, tensors=st.integers(1, 5000), position=st.integers(0, 4999))
def test_strides_stay_inside_and_spread(shape, tensors, position):
    """R79: every coordinate lies in the tensor, no more are read than allowed, and no row or column is read alone."""
    numel = math.prod(shape)
    stride = choose_stride(numel, shape, tensors, position)
    assert 1 <= stride.elements <= min(numel, MAX_PER_TENSOR)
    assert 0 <= stride.offset < stride.step
    assert stride.offset + (stride.count - 1) * stride.step + stride.run <= numel
    if stride.elements == numel:
        assert (stride.offset, stride.count) == (0, 1)
    else:
        assert stride.run == RUN <= stride.step
        assert all(math.gcd(stride.step, size) == math.gcd(RUN, size) for size in shape)


@settings(deadline=None, max_examples=200)
@given(numel=st.integers(1, 100_000), tensors=st.integers(1, 5000), position=st.integers(0, 4999))
def test_the_end_of_a_tensor_is_read_as_its_beginning(numel, tensors, position):
    """Of 768 elements, 439 were read, all of them at the front."""
    stride = choose_stride(numel, (numel,), tensors, position)
    last = stride.offset + (stride.count - 1) * stride.step + stride.run
    assert numel - last < stride.step + RUN


@pytest.mark.parametrize("numel", [441, 768, 1000, 30_000])
def test_a_change_of_the_last_third_alone_is_measured(numel):
    before = [torch.zeros(numel) for _ in range(149)]
    after = [torch.zeros(numel) for _ in range(149)]
    after[7][-(numel // 3) :] = torch.randn(numel // 3, generator=torch.Generator().manual_seed(0))
    sampler = CoordinateSampler(before)
    norms, same = sampler.compare(sampler.read(before), sampler.read(after))
    assert norms[7].item() == pytest.approx(after[7].norm().item(), rel=0.25)
    assert same[7].item() == pytest.approx(2 / 3, abs=0.05)


def test_all_rows_and_columns_are_visited():
    """R79: in a 1024 x 1024 matrix every row and every column has about its share of the samples."""
    stride = choose_stride(1 << 20, (1024, 1024), 1, 0)
    at = (stride.offset + np.arange(stride.count)[:, None] * stride.step + np.arange(stride.run)).reshape(-1)
    for axis in (at // 1024, at % 1024):
        counts = np.bincount(axis, minlength=1024)
        assert counts.min() >= 4
        assert counts.max() <= 16
    assert stride.elements > 7800


def test_the_total_is_bounded():
    """R79: however many tensors there are, about a mebibyte is read of them."""
    tensors = [torch.empty(5000) for _ in range(500)]
    assert CoordinateSampler(tensors).read(tensors).numel() <= MAX_TOTAL


LAYOUTS = {
    "contiguous": lambda: torch.randn(6, 7),
    "transposed": lambda: torch.randn(7, 6).t(),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sliced": lambda: torch.randn(10, 20)[::2, 3:11],
    "0-d": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 3),
    "one": lambda: torch.randn(1),
    "offset": lambda: torch.randn(100)[17:60],
    "double": lambda: torch.randn(9, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(9).bfloat16(),
    "half": lambda: torch.randn(9).half(),
    "large": lambda: torch.randn(300, 100),
    "large transposed": lambda: torch.randn(100, 300).t(),
    "large sliced": lambda: torch.randn(600, 200)[::2, ::2],
    "large channels_last": lambda: torch.randn(4, 8, 30, 31).to(memory_format=torch.channels_last),
}
SMALL = [kind for kind in LAYOUTS if not kind.startswith("large")]


def updated(tensor: torch.Tensor, scale: float = 0.01) -> torch.Tensor:
    change = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)).to(tensor.dtype) * scale
    return tensor.clone(memory_format=torch.preserve_format).add_(change)


def reference(before: list[torch.Tensor], after: list[torch.Tensor]) -> tuple[list[float], list[float]]:
    norms = [float((b.double() - a.double()).norm()) for a, b in zip(before, after, strict=True)]
    same = [float((a == b).double().mean()) for a, b in zip(before, after, strict=True)]
    return norms, same


@pytest.mark.parametrize("kinds", [[kind] for kind in SMALL] + [SMALL], ids=lambda kinds: "+".join(kinds)[:20])
def test_small_tensors_are_measured_exactly(kinds):
    """R79: update norm and unchanged share of tensors that are read whole equal a float64 reference, in any layout."""
    torch.manual_seed(0)
    before = [LAYOUTS[kind]() for kind in kinds]
    after = [updated(tensor) for tensor in before]
    for tensor, old in zip(after, before, strict=True):
        if tensor.numel() > 3:
            tensor.flatten()[:1] = old.flatten()[:1]
    sampler = CoordinateSampler(before)
    norms, same = sampler.compare(sampler.read(before), sampler.read(after))
    expected_norms, expected_same = reference(before, after)
    assert norms.tolist() == pytest.approx(expected_norms, rel=1e-6, abs=1e-12)
    assert same.tolist() == pytest.approx(expected_same, nan_ok=True)


@pytest.mark.parametrize("kind", [kind for kind in LAYOUTS if kind.startswith("large")])
def test_large_tensors_are_estimated_within_bounds(kind):
    """R79: from 4,096 samples the norm of a change is right to a few per cent; a share of changed values too."""
    torch.manual_seed(0)
    before = [LAYOUTS[kind](), torch.randn(3)]
    after = [updated(tensor) for tensor in before]
    after[0][before[0] > 0] = before[0][before[0] > 0]
    sampler = CoordinateSampler(before)
    norms, same = sampler.compare(sampler.read(before), sampler.read(after))
    expected_norms, expected_same = reference(before, after)
    assert norms.tolist() == pytest.approx(expected_norms, rel=0.08)
    assert same.tolist() == pytest.approx(expected_same, abs=0.05)


@pytest.mark.parametrize("kinds", [["contiguous", "transposed", "0-d"], ["large", "one", "large transposed"]])
def test_cosines_between_two_steps(kinds):
    """R79: the same direction is 1, the opposite -1, and independent ones near 0; a zero gradient gives NaN."""
    torch.manual_seed(0)
    one = [LAYOUTS[kind]() for kind in kinds]
    sampler = CoordinateSampler(one)
    first = sampler.read(one)
    assert sampler.cosine(sampler.read([3 * t for t in one]), first).tolist() == pytest.approx([1.0] * 3)
    assert sampler.cosine(sampler.read([-t for t in one]), first).tolist() == pytest.approx([-1.0] * 3)
    zero = sampler.read([torch.zeros_like(t) for t in one])
    assert all(math.isnan(value) for value in sampler.cosine(zero, first).tolist())
    other = [torch.randn(300, 100), torch.ones(1), torch.randn(300, 100)]
    large = CoordinateSampler(other)
    value = large.cosine(large.read(other), large.read([torch.randn(300, 100), torch.ones(1), torch.randn(300, 100)]))
    assert abs(value[0]) < 0.1
    assert abs(value[2]) < 0.1


def test_missing_and_sparse_gradients_read_as_zeros():
    """R79: a gradient that is None or sparse leaves its neighbours' places as they are."""
    tensors = [torch.ones(3), torch.full((2, 2), 2.0), torch.full((4,), 3.0), torch.full((300, 100), 4.0)]
    sampler = CoordinateSampler(tensors)
    values = sampler.read([tensors[0], None, tensors[2].to_sparse(), None])
    full = sampler.read(tensors)
    assert values.shape == full.shape
    assert values[full == 1].tolist() == [1.0] * 3
    assert (values[full != 1] == 0).all()


def test_views_follow_memory_that_is_exchanged():
    """R49: values are right when a step changes a tensor in place, and when it exchanges its memory."""
    tensors = [torch.randn(300, 100), torch.randn(5), torch.randn(200, 200)[::2]]
    sampler = CoordinateSampler(tensors)
    views = sampler.views(tensors)
    tensors[0].add_(1)
    tensors[2].mul_(2)
    assert torch.equal(sampler.read(tensors, views), sampler.read(tensors))
    tensors[0].data = torch.randn(300, 100)
    assert torch.equal(sampler.read(tensors, views), sampler.read(tensors))


def test_a_sampler_knows_its_shapes():
    """R49: other shapes, or another number of tensors, need another sampler."""
    sampler = CoordinateSampler([torch.ones(2, 3)])
    assert sampler.matches([torch.zeros(2, 3)])
    assert not sampler.matches([torch.zeros(3, 2)])
    assert not sampler.matches([])
    assert CoordinateSampler([]).read([]).numel() == 0


def test_non_finite_values_spoil_their_own_tensor_only():
    """R4: a NaN or infinite weight makes its own update NaN or infinite, and no other; no warning comes out."""
    import warnings

    before = [torch.ones(4), torch.ones(3), torch.ones(2)]
    after = [torch.ones(4) * 2, torch.tensor([1.0, math.inf, math.nan]), torch.ones(2)]
    sampler = CoordinateSampler(before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norms, same = sampler.compare(sampler.read(before), sampler.read(after))
        sampler.cosine(sampler.read(before), sampler.read(after))
    assert norms[0] == pytest.approx(2.0)
    assert not math.isfinite(norms[1])
    assert (norms[2], same[2]) == (0.0, 1.0)
    assert same.tolist() == pytest.approx([0.0, 1 / 3, 1.0])


def test_sampling_is_the_same_every_time():
    """R79: two samplers for the same shapes read the same coordinates, and no random number is drawn."""
    tensors = [torch.randn(300, 100), torch.randn(7)]
    state = torch.get_rng_state()
    assert torch.equal(CoordinateSampler(tensors).read(tensors), CoordinateSampler(tensors).read(tensors))
    assert torch.equal(torch.get_rng_state(), state)
