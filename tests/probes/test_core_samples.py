"""Sampled coordinates against elements that are picked one by one, in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from gradmedic.probes.samples import MAX_TOTAL, MINIMUM, CoordinateSampler, choose_stride


def picked(tensor: torch.Tensor, total: int, position: int) -> list[float]:
    """The coordinates of one tensor in memory order: logical order for small and contiguous ones."""
    stride = choose_stride(tensor.numel(), tensor.shape, total, position) if tensor.numel() else None
    flat = tensor.detach().reshape(-1).tolist()
    if stride is None:
        return []
    return [flat[stride.offset + i * stride.step + j] for i in range(stride.count) for j in range(stride.run)]


def test_every_column_belongs_to_its_tensor():
    torch.manual_seed(0)
    before = [torch.randn(100, 97), torch.randn(3), torch.randn(0), torch.randn(90_000), torch.randn(5, 5)]
    after = [tensor + 0.1 * torch.randn_like(tensor) * (at != 4) for at, tensor in enumerate(before)]
    sampler = CoordinateSampler(before)
    update, unchanged = sampler.compare(sampler.read(before), sampler.read(after))
    cosine = sampler.cosine(sampler.read(after), sampler.read(before))
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        a, b = picked(old, 5, at), picked(new, 5, at)
        if not a:
            continue
        size = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) * old.numel() / len(a))
        assert update[at].item() == pytest.approx(size, rel=1e-6)
        assert unchanged[at].item() == sum(x == y for x, y in zip(a, b, strict=True)) / len(a)
        product = sum(x * y for x, y in zip(a, b, strict=True))
        norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
        assert cosine[at].item() == pytest.approx(product / norms, abs=1e-6)


def test_the_sample_of_many_tensors_is_bounded():
    tensors = [torch.zeros(1000) for _ in range(2000)]
    assert CoordinateSampler(tensors).read(tensors).numel() <= max(MAX_TOTAL, MINIMUM * len(tensors))


@pytest.mark.parametrize("numel", [7, 50_000])
def test_a_reading_does_not_follow_its_tensor(numel):
    weight = torch.nn.Parameter(torch.randn(numel))
    sampler = CoordinateSampler([weight])
    first = sampler.read([weight])
    kept = first.clone()
    with torch.no_grad():
        weight.mul_(2.0)
    assert torch.equal(first, kept)
    assert torch.equal(sampler.read([weight]), 2.0 * kept)


@pytest.mark.parametrize("kind", ["contiguous", "transposed", "with gaps"])
def test_views_made_before_a_change_show_it(kind):
    base = torch.randn(300, 400)
    tensor = {"contiguous": base, "transposed": base.T, "with gaps": base[:, ::2]}[kind]
    sampler = CoordinateSampler([tensor])
    views = sampler.views([tensor])
    before = sampler.read([tensor], views)
    tensor.add_(1.0)
    update, unchanged = sampler.compare(before, sampler.read([tensor], views))
    assert update.item() == pytest.approx(math.sqrt(tensor.numel()), rel=1e-5)
    assert unchanged.item() == 0.0


def test_views_of_memory_that_was_exchanged_are_made_anew():
    weight = torch.nn.Parameter(torch.zeros(50_000))
    sampler = CoordinateSampler([weight])
    views = sampler.views([weight])
    weight.data = torch.ones(50_000)
    assert sampler.read([weight], views).eq(1.0).all()


def test_missing_and_sparse_gradients_read_as_zeros():
    tensors = [torch.ones(4), torch.ones(60_000), torch.ones(3, 3)]
    sampler = CoordinateSampler(tensors)
    sparse = torch.ones(3, 3).to_sparse()
    update, _ = sampler.compare(sampler.read([None, tensors[1], sparse]), sampler.read(tensors))
    assert update.tolist() == pytest.approx([2.0, 0.0, 3.0])


def test_complex_tensors_are_sampled_by_their_real_parts():
    tensors = [torch.full((4,), 1 + 1j), torch.full((60_000,), 2 + 5j), torch.full((2,), 3.0)]
    sampler = CoordinateSampler(tensors)
    cosine = sampler.cosine(sampler.read(tensors), sampler.read([torch.full_like(t, -1.0) for t in tensors]))
    assert cosine.tolist() == pytest.approx([-1.0, -1.0, -1.0])
    assert not sampler.read(tensors).is_complex()
