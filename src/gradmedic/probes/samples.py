"""Sampled coordinates of weights and gradients: how much a step changed, and whether gradients agree from step to step.

A small tensor is read whole. Of each larger one short runs of neighbours are read, k elements apart, with k chosen so
that the runs spread over all rows and columns, from an offset that a fixed seed decides. What a sample costs is the
cache line that it lies on: four neighbours are read at the price of one. Strided views cost no memory and `torch.cat`
reads them all: a few launches for any number of tensors, and no index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradmedic.probes.host_samples import HostSamples
from gradmedic.stats.transfer import to_device

#: At most so many coordinates of one tensor, and of all tensors together (256 KiB in fp32, which stays in the caches).
MAX_PER_TENSOR = 8192
MAX_TOTAL = 2**16
#: But of each tensor at least so many.
MINIMUM = 128
#: Neighbours that are read together: 16 bytes of fp32.
RUN = 4
_SEED = 20_251
_FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Stride:
    """Which elements of a tensor are read: `count` runs of `run` neighbours, `step` apart, from `offset`."""

    offset: int
    step: int
    count: int
    run: int

    @property
    def elements(self) -> int:
        """How many are read."""
        return self.count * self.run


@dataclass(frozen=True, slots=True)
class Views:
    """Strided views of the tensors that are too large to be read whole, and the addresses that they were made for.

    They keep the tensors' memory alive: for use within one step.
    """

    strided: list[torch.Tensor]
    addresses: list[int]


def choose_stride(numel: int, shape: Sequence[int], tensors: int, position: int) -> Stride:
    """Choose the coordinates of one tensor.

    Args:
        numel: number of elements, >= 1.
        shape: the tensor's shape.
        tensors: number of tensors that share the total.
        position: place among them, which varies the offset.

    Returns:
        All elements of a small tensor, else a spread of at most `MAX_PER_TENSOR` over the whole of it.
    """
    wanted = min(MAX_PER_TENSOR, max(MINIMUM, MAX_TOTAL // max(tensors, 1)))
    if numel <= wanted:
        return Stride(0, numel, 1, numel)
    places, runs = numel // RUN, wanted // RUN
    step = -(-places // runs)  # rounded up: the last part of a tensor is read as the first
    # A step that shares more than a run with a dimension would read the same columns again and again.
    while any(size > 1 and math.gcd(step * RUN, size) > math.gcd(RUN, size) for size in shape):
        step += 1
    offset = (_SEED * (position + 1)) % step % places
    return Stride(offset * RUN, step * RUN, min(runs, -(-(places - offset) // step)), RUN)


class CoordinateSampler:
    """Reads the same coordinates of a fixed list of tensors again and again.

    Args:
        tensors: the tensors (shapes are what matters); the sampler keeps none of them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        total = len(tensors)
        strides = [
            choose_stride(tensor.numel(), tensor.shape, total, position) if tensor.numel() else Stride(0, 1, 0, 1)
            for position, tensor in enumerate(tensors)
        ]
        self._strides = strides
        self._whole = [at for at, tensor in enumerate(tensors) if strides[at].elements == tensor.numel()]
        self._parts = [at for at, tensor in enumerate(tensors) if strides[at].elements < tensor.numel()]
        self._geometry = [
            (at, (stride.count, stride.run), (stride.step, 1), stride.offset)
            for at, stride in ((at, strides[at]) for at in self._parts)
        ]
        # Values lie in the order of `order`: whole tensors first, so that one operation reads all of them.
        order = np.array([*self._whole, *self._parts], dtype=np.int64)
        self._place = np.argsort(order, kind="stable")
        self._in_order = bool((order == np.arange(total)).all())
        counts = np.array([stride.elements for stride in strides], dtype=np.int64)
        numels = np.array([tensor.numel() for tensor in tensors], dtype=np.float64)
        self._counts, self._factors = counts, numels / np.maximum(counts, 1)
        self._lengths = counts[order]
        self._filled = np.flatnonzero(counts[order])
        self._starts = (np.cumsum(counts[order]) - counts[order])[self._filled]
        self._shapes = [tensor.shape for tensor in tensors]
        self._odd = len({tensor.device for tensor in tensors}) > 1 or any(
            tensor.is_complex() or tensor.element_size() == 1 for tensor in tensors
        )
        self._constants: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._last_squares: tuple[torch.Tensor, torch.Tensor] | None = None
        self._host = self._on_host(tensors) if not self._odd and HostSamples.able(tensors) else None

    def _on_host(self, tensors: Sequence[torch.Tensor]) -> HostSamples:
        order = [*self._whole, *self._parts]
        starts = np.zeros(len(tensors), dtype=np.int64)
        starts[order] = np.cumsum(self._counts[order]) - self._counts[order]
        strides = np.array([(each.offset, each.step, each.count, each.run) for each in self._strides], dtype=np.int64)
        wide = any(tensor.dtype == torch.float64 for tensor in tensors)
        numels = [tensor.numel() for tensor in tensors]
        return HostSamples(numels, strides.reshape(-1, 4).T, starts, wide=wide)

    def matches(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the sampler was made for tensors of these shapes."""
        return [tensor.shape for tensor in tensors] == self._shapes

    @torch.no_grad()
    def views(self, tensors: Sequence[torch.Tensor]) -> Views:
        """Return views with which the same tensors can be read several times; none where they are read without."""
        if self._host is not None:
            return Views([], [])
        strided = self._strided(tensors)
        # A tensor with gaps in memory was copied; its address never fits, and it is read anew each time.
        starts = [geometry[3] * view.element_size() for geometry, view in zip(self._geometry, strided, strict=True)]
        return Views(strided, [view.data_ptr() - start for view, start in zip(strided, starts, strict=True)])

    def _strided(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            tensor.as_strided(size, step, tensor.storage_offset() + offset)
            if (tensor := tensors[at]).is_contiguous()
            else _strided(tensor, self._strides[at])
            for at, size, step, offset in self._geometry
        ]

    @torch.no_grad()
    def read(self, tensors: Sequence[torch.Tensor | None], views: Views | None = None) -> torch.Tensor:
        """Return the sampled values, [sum of counts], fp32 or wider, on the tensors' device; no host sync.

        Tensors on several devices are gathered on the first one's. Zeros stand for a gradient that is None or sparse.

        Args:
            tensors: those that the sampler was made for, or their gradients.
            views: what `views` returned for them; made anew where a tensor's memory has been exchanged since.
        """
        if self._host is not None and (values := self._host.read(tensors, self._piece)) is not None:
            return values
        plain = [tensor for tensor in tensors if tensor is not None and tensor.layout == torch.strided]
        everything = len(plain) == len(tensors)
        if everything:
            whole = [plain[at] for at in self._whole]
            fits = views is not None and views.addresses == [plain[at].data_ptr() for at in self._parts]
            parts = views.strided if views is not None and fits else self._strided(plain)
        else:
            whole, parts = ([self._piece(tensors[at], at) for at in places] for places in (self._whole, self._parts))
        if not (whole or parts):
            return torch.zeros(0)
        if not everything or self._odd:
            whole, parts = _alike(whole, parts)
        flat = _join(whole, parts)
        return flat if flat.dtype in _FLOATS else flat.float()

    def compare(self, before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (update_norm, unchanged_frac), float64 [N], from the weights before and after a step.

        The norm is an estimate from the sample, exact where the whole tensor was read.
        """
        if self._host is not None and self._host.fits(before, after):
            sums = self._host.compare(before, after)
            with np.errstate(all="ignore"):  # no elements: nothing of nothing is unchanged
                return torch.from_numpy(np.sqrt(sums[0] * self._factors)), torch.from_numpy(sums[1] / self._counts)
        if after.device.type == "cpu":
            return self._compare_on_host(before.numpy(), after.numpy())
        change = after.double() - before.double()
        squares = self._sum(change.square_())
        same = self._sum(after == before)
        factors = self._there("factors", self._factors, squares.device)
        counts = self._there("counts", self._counts, squares.device)
        return (squares * factors).sqrt(), same / counts  # NaN for a tensor without elements

    def _compare_on_host(self, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        # The same with numpy, whose calls cost a fraction of torch's on few elements.
        with np.errstate(all="ignore"):
            change = np.subtract(after, before, dtype=np.float64)
            norms = np.sqrt(self._sum_on_host(np.square(change, out=change)) * self._factors)
            unchanged = self._sum_on_host(after == before) / self._counts
        return torch.from_numpy(norms), torch.from_numpy(unchanged)

    def cosine(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the cosine between two samples, float64 [N]; NaN where one of them is zero."""
        if self._host is not None and self._host.fits(one, other):
            _, _, dot, squares_of_one, squares_of_other = self._host.compare(one, other)
            with np.errstate(all="ignore"):
                return torch.from_numpy(dot / (np.sqrt(squares_of_one) * np.sqrt(squares_of_other)))
        wide, known = one.double(), self._last_squares
        squares = self._sum(wide * wide)
        others = known[1] if known is not None and known[0] is other else self._sum(other.double().square())
        self._last_squares = (one, squares)
        return self._sum(wide * other) / (squares.sqrt() * others.sqrt())

    def products(self, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (dot product, squares of `one`, squares of `other`), float64 [N]: a cosine's parts, to be added up.

        Estimates for the whole tensors, from the share of their elements that is sampled.
        """
        if self._host is not None and self._host.fits(one, other):
            dot, squares_of_one, squares_of_other = self._host.compare(one, other)[2:] * self._factors
            return torch.from_numpy(dot), torch.from_numpy(squares_of_one), torch.from_numpy(squares_of_other)
        wide, former = one.double(), other.double()
        factors = self._there("factors", self._factors, wide.device)
        return (
            self._sum(wide * former) * factors,
            self._sum(wide * wide) * factors,
            self._sum(former * former) * factors,
        )

    @property
    def numels(self) -> torch.Tensor:
        """Numbers of elements of the tensors, float64 [N], on the CPU."""
        return torch.from_numpy(self._factors * np.maximum(self._counts, 1))

    def _piece(self, tensor: torch.Tensor | None, at: int) -> torch.Tensor:
        stride = self._strides[at]
        if tensor is None or tensor.layout != torch.strided or tensor.device.type == "meta":
            return torch.zeros(stride.count, stride.run)
        return tensor.detach() if stride.elements == tensor.numel() else _strided(tensor, stride)

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum the values of each tensor, float64 [N]."""
        if values.device.type == "cpu":
            return torch.from_numpy(self._sum_on_host(values.numpy()))
        # unsafe=True leaves out a check of the lengths that would read them back from the device.
        lengths = self._there("lengths", self._lengths, values.device)
        sums = torch.segment_reduce(values.double(), "sum", lengths=lengths, unsafe=True, initial=0)
        return sums if self._in_order else sums[self._there("place", self._place, sums.device)]

    def _there(self, name: str, values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
        """Return constants on a device: sent there once, for that takes a copy."""
        key = (name, device)
        if key not in self._constants:
            self._constants[key] = to_device(torch.from_numpy(values), device)
        return self._constants[key]

    def _sum_on_host(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        # segment_reduce is an order of magnitude slower than numpy's on a CPU. reduceat gives an empty segment its
        # next neighbour's first value, and takes sums of booleans for "or": leave the ones out, and widen the others.
        sums = np.zeros(len(self._strides))
        if self._starts.size:
            numbers = values.view(np.uint8) if values.dtype == np.bool_ else values
            with np.errstate(all="ignore"):  # infinities of both signs add up to NaN, as they should, without a word
                sums[self._filled] = np.add.reduceat(numbers, self._starts, dtype=np.float64)
        return sums if self._in_order else sums[self._place]


def _join(whole: list[torch.Tensor], parts: list[torch.Tensor]) -> torch.Tensor:
    runs = [torch.cat(parts).view(-1)] if parts else []
    if len(whole) < 2:  # flattening a single tensor would not copy it
        return torch.cat([*(tensor.reshape(-1) for tensor in whole), *runs]) if whole else runs[0]
    flat: torch.Tensor = torch._C._nn.flatten_dense_tensors(whole)
    return torch.cat([flat, *runs]) if runs else flat


def _alike(*groups: list[torch.Tensor]) -> tuple[list[torch.Tensor], ...]:
    """Bring all pieces to one device, and complex ones to their real parts."""
    devices = [piece.device for group in groups for piece in group]
    device = next((device for device in devices if device.type != "cpu"), devices[0])
    return tuple([_promotable(piece).to(device, non_blocking=True) for piece in group] for group in groups)


def _promotable(piece: torch.Tensor) -> torch.Tensor:
    """Bring a complex tensor to its real part, and fp8, which promotes with nothing, to fp32."""
    piece = piece.real if piece.is_complex() else piece
    return piece.float() if piece.element_size() == 1 else piece


def _strided(tensor: torch.Tensor, stride: Stride) -> torch.Tensor:
    if not tensor.is_contiguous() and not _is_dense(tensor):
        tensor = tensor.contiguous()
    if tensor.element_size() == 1:  # fp8 has no promotion with other types: widen what is read of it
        return _runs_of(tensor, stride).float()
    return _runs_of(tensor, stride)


def _runs_of(tensor: torch.Tensor, stride: Stride) -> torch.Tensor:
    return tensor.as_strided((stride.count, stride.run), (stride.step, 1), tensor.storage_offset() + stride.offset)


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
