"""Sampled coordinates of weights and gradients: how much a step changed, and whether gradients agree from step to step.

Of each tensor every k-th element in memory order is read, with k coprime to the tensor's dimensions so that the
samples spread over all rows and columns, from an offset that a fixed seed decides. Strided views cost nothing and one
`torch.cat` reads them all: a few launches for any number of tensors, and no index in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

#: At most so many coordinates of one tensor, and of all tensors together (1 MiB in fp32).
MAX_PER_TENSOR = 4096
MAX_TOTAL = 2**18
_MINIMUM = 64
_SEED = 20_251


@dataclass(frozen=True, slots=True)
class Stride:
    """Which elements of a tensor are read: `count` of them, `step` apart, from `offset`."""

    offset: int
    step: int
    count: int


def choose_stride(numel: int, shape: Sequence[int], tensors: int, position: int) -> Stride:
    """Choose the coordinates of one tensor.

    Args:
        numel: number of elements, >= 1.
        shape: the tensor's shape.
        tensors: number of tensors that share the total.
        position: place among them, which varies the offset.

    Returns:
        All elements of a small tensor, else a spread of at most `MAX_PER_TENSOR`.
    """
    wanted = min(MAX_PER_TENSOR, max(_MINIMUM, MAX_TOTAL // max(tensors, 1)))
    if numel <= wanted:
        return Stride(0, 1, numel)
    step = numel // wanted
    # A step that shares a factor with a dimension would read the same columns again and again.
    while step > 1 and any(size > 1 and math.gcd(step, size) > 1 for size in shape):
        step += 1
    offset = (_SEED * (position + 1)) % step if step > 1 else 0
    return Stride(offset, step, min(wanted, (numel - offset + step - 1) // step))


class CoordinateSampler:
    """Reads the same coordinates of a fixed list of tensors again and again.

    Args:
        tensors: the tensors (shapes are what matters); the sampler keeps none of them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        total = len(tensors)
        self._strides = [
            choose_stride(tensor.numel(), tensor.shape, total, position) if tensor.numel() else Stride(0, 1, 0)
            for position, tensor in enumerate(tensors)
        ]
        self._counts = torch.tensor([stride.count for stride in self._strides], dtype=torch.int64)
        self._factors = torch.tensor(
            [tensor.numel() / max(stride.count, 1) for tensor, stride in zip(tensors, self._strides, strict=True)],
            dtype=torch.float64,
        )
        self._shapes = [tensor.shape for tensor in tensors]
        counts = self._counts.numpy()
        self._filled = np.flatnonzero(counts)
        self._starts = (np.cumsum(counts) - counts)[self._filled]

    def matches(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the sampler was made for tensors of these shapes."""
        return len(tensors) == len(self._shapes) and all(
            tensor.shape == shape for tensor, shape in zip(tensors, self._shapes, strict=True)
        )

    @torch.no_grad()
    def read(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the sampled values, [sum of counts], fp32 or wider, on the tensors' device; no host sync.

        Tensors on several devices are gathered on the first one's. Zeros stand for a gradient that is None or sparse.
        """
        pieces = [
            torch.zeros(stride.count)
            if tensor is None or tensor.layout != torch.strided or tensor.device.type == "meta"
            else _strided(tensor.detach(), stride)
            for tensor, stride in zip(tensors, self._strides, strict=True)
        ]
        if not pieces:
            return torch.zeros(0)
        device = next((piece.device for piece in pieces if piece.device.type != "cpu"), pieces[0].device)
        if any(piece.device != device for piece in pieces):
            pieces = [piece.to(device, non_blocking=True) for piece in pieces]
        flat = torch.cat(pieces)
        return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

    def compare(self, before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (update_norm, unchanged_frac), float64 [N], from the weights before and after a step.

        The norm is an estimate from the sample, exact where the whole tensor was read.
        """
        change = after.double() - before.double()
        squares = self._sum(change * change)
        same = self._sum((after == before).double())
        counts = self._counts.to(squares.device)
        return (squares * self._factors.to(squares.device)).sqrt(), same / counts

    def cosine(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the cosine between two samples, float64 [N]; NaN where one of them is zero."""
        one, other = one.double(), other.double()
        product = self._sum(one * other)
        return product / (self._sum(one * one).sqrt() * self._sum(other * other).sqrt())

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        if values.device.type == "cpu":
            return self._sum_on_host(values)
        lengths = self._counts.to(values.device)
        # unsafe=True leaves out a check of the lengths that would read them back from the device.
        return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True, initial=0)

    def _sum_on_host(self, values: torch.Tensor) -> torch.Tensor:
        # segment_reduce is an order of magnitude slower than numpy's on a CPU. reduceat gives an empty segment its
        # next neighbour's first value: leave those out.
        sums = torch.zeros(len(self._strides), dtype=torch.float64)
        if self._starts.size:
            with np.errstate(all="ignore"):  # infinities of both signs add up to NaN, which is what is meant
                sums.numpy()[self._filled] = np.add.reduceat(values.numpy(), self._starts)
        return sums


def _strided(tensor: torch.Tensor, stride: Stride) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)[..., 0]
    if not tensor.is_contiguous() and not _is_dense(tensor):
        tensor = tensor.contiguous()
    return tensor.as_strided((stride.count,), (stride.step,), tensor.storage_offset() + stride.offset)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a permuted tensor fills its memory without gaps or overlaps, so that memory order may be sampled."""
    expected = 1
    for size, step in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True
