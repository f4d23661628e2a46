"""How the torch backend lays tensors out: as rows of one length, in chunks that fit into a buffer of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gradmedic.stats.inputs import flat_view
from gradmedic.stats.torch_plans import Chunk, plan_of

#: Bytes of a chunk: a group below 64 MiB needs four or five, and what one of them needs at once, results of a batch of
#: rows included, stays below 64 MiB. On the CPU, where a launch costs little, chunks stay within the caches.
_CHUNK_BYTES = 1 << 24
_CPU_BYTES = 1 << 22
#: Elements of a group that can afford the best precision.
_FEW = 1 << 16
#: Rows whose results are kept until they are joined.
_BATCH_ROWS = 1 << 16


class Layout:
    """Tensors of one device and type as rows.

    Attributes:
        row: elements of a row.
        rows: number of rows altogether; `chunk_rows`, how many of them a chunk has at most.
        padding: elements of padding of each tensor.
        batches: chunks of rows, in batches; the pieces of a tensor follow each other.
        runs: in how many runs each tensor lies: none if it is empty, several if batches part it.
        device, dtype: where and in which type rows are reduced.
    """

    def __init__(self, tensors: list[Tensor], padding: float) -> None:
        example = tensors[0]
        self._dtype, self.device = example.dtype, example.device
        sizes = [tensor.numel() for tensor in tensors]
        self.dtype = _reduced_dtype(example.dtype, sum(sizes))
        limit = _limit(example) // self.dtype.itemsize
        self._blocks, owners = _blocks_of(tensors, limit // 2)
        if owners is not None:
            sizes = [block.numel() for block in self._blocks]
        plan = plan_of(tuple(sizes), owners, limit, _BATCH_ROWS)
        self.row, self.rows, self.chunk_rows = plan.row, plan.rows, plan.chunk_rows
        self.padding, self.batches, self.runs = plan.padding, plan.batches, plan.runs
        pad = torch.full((self.row,), padding, dtype=self.dtype, device=self.device)
        self._pad = _storable(pad.to(self._dtype))
        self._pads: dict[int, Tensor] = {}
        self._gaps = owners is not None
        self._seam: tuple[int, Tensor] | None = None

    def empty(self, *shape: int) -> Tensor:
        """Return memory of the type and on the device in which rows are reduced."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def fill(self, chunk: Chunk, buffer: Tensor) -> Tensor:
        """Copy a chunk to the front of `buffer`, complex numbers by their absolute values; return its rows [R, L]."""
        x = buffer.narrow(0, 0, chunk.filled)
        flat = x.view(-1)
        parts = self._parts(chunk)
        if self._dtype == self.dtype:
            torch.cat(parts, out=flat)
            return x
        joined = torch.cat(parts).view(self._dtype)
        del parts  # copies of what had gaps
        if joined.is_complex():
            nan = joined.isnan()  # whose absolute value may be infinite
            torch.abs(joined.to(torch.complex128), out=flat).masked_fill_(nan, math.nan)
        else:
            torch.ops.aten.copy_(flat, joined)  # the method asks for a driver, even of a fake device
        return x

    def _parts(self, chunk: Chunk) -> list[Tensor]:
        """Return 1-D tensors that, one after the other, fill whole rows: pieces, and padding where it is needed."""
        sources = self._blocks[chunk.first : chunk.end]
        if self._gaps:
            sources = self._flattened(sources, chunk)
        if self._dtype.itemsize == 1:
            sources = [_storable(block) for block in sources]
        if chunk.stop < sources[-1].shape[0]:
            sources[-1] = sources[-1].narrow(0, 0, chunk.stop)
        if chunk.begin:
            sources[0] = sources[0].narrow(0, chunk.begin, sources[0].shape[0] - chunk.begin)
        sources += [self._padding_of(missing) for missing in chunk.pads]
        return [sources[at] for at in chunk.order]

    def _flattened(self, blocks: list[Tensor], chunk: Chunk) -> list[Tensor]:
        """Return blocks as 1-D tensors; what had to be copied is kept where the next chunk goes on with it."""
        flats = [block if block.dim() == 1 else block.reshape(-1) for block in blocks[1:]]
        seam, self._seam = self._seam, None
        known = seam is not None and seam[0] == chunk.first
        flats.insert(0, seam[1] if seam is not None and known else blocks[0].reshape(-1))
        if chunk.stop < flats[-1].shape[0]:
            self._seam = (chunk.end - 1, flats[-1])
        return flats

    def _padding_of(self, missing: int) -> Tensor:
        if missing not in self._pads:
            self._pads[missing] = self._pad.narrow(0, 0, missing)
        return self._pads[missing]


def _reduced_dtype(dtype: torch.dtype, elements: int) -> torch.dtype:
    """Return float64 for wide and complex types, and for any where there is little to do; else float32."""
    wide = dtype == torch.float64 or dtype.is_complex or elements <= _FEW
    return torch.float64 if wide else torch.float32


def _limit(example: Tensor) -> int:
    """Return how many bytes a chunk of such tensors may have, in the type in which they are reduced."""
    limit = _CPU_BYTES if example.device.type == "cpu" else _CHUNK_BYTES
    return limit // 2 if example.is_complex() else limit  # these are copied twice before they are absolute values


def _blocks_of(tensors: list[Tensor], limit: int) -> tuple[list[Tensor], tuple[int, ...] | None]:
    """Return blocks that together are the tensors, and the position of the tensor of each.

    Where all tensors are flat, each of them is a block, 1-D, and there are no positions.
    """
    if all([tensor.is_contiguous() for tensor in tensors]):
        return [tensor if tensor.dim() == 1 else tensor.view(-1) for tensor in tensors], None
    parted = [(owner, block) for owner, tensor in enumerate(tensors) for block in _blocks(tensor, limit)]
    return [block for _, block in parted], tuple([owner for owner, _ in parted])


def _blocks(tensor: Tensor, limit: int) -> Iterator[Tensor]:
    """Yield views that together are the tensor: one that is flat, or others of at most `limit` elements, with gaps."""
    flat = tensor if tensor.dim() == 1 and tensor.is_contiguous() else flat_view(tensor)
    if flat is not None or tensor.numel() <= limit:
        yield tensor if flat is None else flat
        return
    longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    for half in tensor.chunk(2, dim=longest):
        yield from _blocks(half, limit)


def _storable(flat: Tensor) -> Tensor:
    """Return 8-bit floats as bytes, for torch cannot concatenate them everywhere."""
    return flat.view(torch.uint8) if flat.dtype.itemsize == 1 else flat
