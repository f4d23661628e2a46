"""Made data that small models learn within a few dozen steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gradmedic.testing.case import Batch, generator

CLASSES = 10


def clusters(seed: int, features: int = 32, size: int = 64, *, ordered: bool = False) -> Callable[[int], Batch]:
    """Return step -> (inputs [size, features], classes [size]): ten clouds of points around fixed centers.

    With `ordered`, each batch holds points of one cloud only, and the clouds take turns every four batches.
    """
    centers = torch.randn(CLASSES, features, generator=generator(seed, -1))

    def batch(step: int) -> Batch:
        source = generator(seed, step)
        classes = torch.randint(CLASSES, (size,), generator=source)
        if ordered:
            classes = torch.full((size,), step // 4 % CLASSES)
        return centers[classes] + torch.randn(size, features, generator=source), classes

    return batch


def gratings(seed: int, side: int = 8, size: int = 32) -> Callable[[int], Batch]:
    """Return step -> (images [size, 3, side, side], classes [size]): stripes of ten directions, in colour and noise."""
    axis = torch.linspace(-1, 1, side)
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    angles = torch.arange(CLASSES) * (math.pi / CLASSES)
    along = angles.cos()[:, None, None] * across + angles.sin()[:, None, None] * down

    def batch(step: int) -> Batch:
        source = generator(seed, step)
        classes = torch.randint(CLASSES, (size,), generator=source)
        phases = 2 * math.pi * torch.rand(size, 1, 1, generator=source)
        stripes = torch.sin(6 * along[classes] + phases)
        colour = 0.5 + torch.rand(size, 3, 1, 1, generator=source)
        noise = 0.3 * torch.randn(size, 3, side, side, generator=source)
        return colour * stripes[:, None] + noise, classes

    return batch


def counting(seed: int, words: int = 17, length: int = 16, size: int = 16) -> Callable[[int], Batch]:
    """Return step -> (ids [size, length], the ids that follow them): each row counts on by a stride of its own."""

    def batch(step: int) -> Batch:
        source = generator(seed, step)
        first = torch.randint(words, (size, 1), generator=source)
        stride = torch.randint(1, 4, (size, 1), generator=source)
        ids = (first + stride * torch.arange(length + 1)) % words
        return ids[:, :-1], ids[:, 1:]

    return batch


def running_sums(seed: int, length: int = 12, size: int = 32) -> Callable[[int], Batch]:
    """Return step -> (numbers [size, length, 1], their sums [size, 1] over sqrt(length)): both of unit size."""

    def batch(step: int) -> Batch:
        numbers = torch.randn(size, length, 1, generator=generator(seed, step))
        return numbers, numbers.sum(1) / math.sqrt(length)

    return batch


def ring(seed: int, size: int = 64) -> Callable[[int], torch.Tensor]:
    """Return step -> points [size, 2] near a circle of radius 1."""

    def batch(step: int) -> torch.Tensor:
        source = generator(seed, step)
        angle = 2 * math.pi * torch.rand(size, generator=source)
        return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(size, 2, generator=source)

    return batch
