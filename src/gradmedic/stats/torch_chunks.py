"""How the torch backend lays tensors out: as rows of one length, in chunks that fit into a buffer of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradmedic.stats.inputs import flat_view

#: Elements of a row: the most with which padding stays below a share of the elements.
_ROW_LENGTHS = (1024, 512, 256, 128, 64, 32)
_MOST_PADDING = 1 / 8
#: Bytes of a chunk: a group below 64 MiB needs four or five, and what one of them needs at once, results of a batch of
#: rows included, stays below 64 MiB. On the CPU, where a launch costs little, chunks stay within the caches.
_CHUNK_BYTES = 1 << 24
_CPU_BYTES = 1 << 22
#: Elements of a group that can afford the best precision.
_FEW = 1 << 16
#: Rows whose results are kept until they are joined.
_BATCH_ROWS = 1 << 16


@dataclass(slots=True)
class Chunk:
    """Pieces of tensors that are reduced together.

    Attributes:
        parts: 1-D tensors that, one after the other, fill whole rows: pieces, and padding after each where needed.
        owners, rows: for each piece, the position of its tensor, and how many rows it fills.
        filled: sum of `rows`.
    """

    parts: list[Tensor] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    filled: int = 0


class Layout:
    """Tensors of one device and type as rows.

    Attributes:
        row: elements of a row.
        rows: number of rows altogether; `batch_rows` and `chunk_rows`, how many of them a batch, and a chunk, has at
            most.
        padding: elements of padding of each tensor.
        device, dtype: where and in which type rows are reduced.
    """

    def __init__(self, tensors: list[Tensor], padding: float) -> None:
        example = tensors[0]
        self._dtype, self.device = example.dtype, example.device
        self.dtype = _reduced_dtype(tensors)
        limit = _limit(example) // self.dtype.itemsize
        self._blocks = [(owner, block) for owner, tensor in enumerate(tensors) for block in _blocks(tensor, limit // 2)]
        sizes = np.array([block.numel() for _, block in self._blocks], dtype=np.int64)
        self.row = _row_length(sizes)
        missing = -sizes % self.row
        self.rows = int((sizes + missing).sum()) // self.row
        self.batch_rows = min(self.rows, _BATCH_ROWS)
        self.chunk_rows = min(self.batch_rows, limit // self.row)
        owners = np.array([owner for owner, _ in self._blocks], dtype=np.int64)
        self.padding: list[int] = np.bincount(owners, missing, len(tensors)).astype(np.int64).tolist()
        pad = torch.full((self.row,), padding, dtype=self.dtype, device=self.device)
        self._pad = _storable(pad.to(self._dtype))
        self._pads: dict[int, Tensor] = {}

    def empty(self, *shape: int) -> Tensor:
        """Return memory of the type and on the device in which rows are reduced."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all elements; the pieces of a tensor follow each other."""
        chunk = Chunk()
        for owner, block in self._blocks:
            flat = _storable(block if block.dim() == 1 else block.reshape(-1))
            done, size = 0, flat.shape[0]
            while done < size:
                taken = min(size - done, (self.chunk_rows - chunk.filled) * self.row)
                self._add(chunk, owner, flat if taken == size else flat.narrow(0, done, taken))
                done += taken
                if chunk.filled == self.chunk_rows:
                    yield chunk
                    chunk = Chunk()
        if chunk.parts:
            yield chunk

    def _add(self, chunk: Chunk, owner: int, piece: Tensor) -> None:
        rows, rest = divmod(piece.shape[0], self.row)
        chunk.parts.append(piece)
        if rest:
            missing = self.row - rest
            if missing not in self._pads:
                self._pads[missing] = self._pad.narrow(0, 0, missing)
            chunk.parts.append(self._pads[missing])
            rows += 1
        chunk.owners.append(owner)
        chunk.rows.append(rows)
        chunk.filled += rows

    def fill(self, chunk: Chunk, buffer: Tensor) -> Tensor:
        """Copy a chunk to the front of `buffer`, complex numbers by their absolute values; return its rows [R, L].

        The chunk lets go of its parts.
        """
        x = buffer.narrow(0, 0, chunk.filled)
        flat = x.view(-1)
        if self._dtype == self.dtype:
            torch.cat(chunk.parts, out=flat)
            chunk.parts.clear()  # copies of what had gaps
            return x
        joined = torch.cat(chunk.parts).view(self._dtype)
        chunk.parts.clear()
        if joined.is_complex():
            nan = joined.isnan()  # whose absolute value may be infinite
            torch.abs(joined.to(torch.complex128), out=flat).masked_fill_(nan, math.nan)
        else:
            torch.ops.aten.copy_(flat, joined)  # the method asks for a driver, even of a fake device
        return x


def _reduced_dtype(tensors: list[Tensor]) -> torch.dtype:
    """Return float64 for wide and complex types, and for any where there is little to do; else float32."""
    dtype = tensors[0].dtype
    wide = dtype == torch.float64 or dtype.is_complex or sum(tensor.numel() for tensor in tensors) <= _FEW
    return torch.float64 if wide else torch.float32


def _limit(example: Tensor) -> int:
    """Return how many bytes a chunk of such tensors may have, in the type in which they are reduced."""
    limit = _CPU_BYTES if example.device.type == "cpu" else _CHUNK_BYTES
    return limit // 2 if example.is_complex() else limit  # these are copied twice before they are absolute values


def _blocks(tensor: Tensor, limit: int) -> Iterator[Tensor]:
    """Yield views that together are the tensor: one that is flat, or others of at most `limit` elements, with gaps."""
    flat = tensor if tensor.dim() == 1 and tensor.is_contiguous() else flat_view(tensor)
    if flat is not None or tensor.numel() <= limit:
        yield tensor if flat is None else flat
        return
    longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    for half in tensor.chunk(2, dim=longest):
        yield from _blocks(half, limit)


def _row_length(sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    allowed = float(sizes.sum()) * _MOST_PADDING
    return next((row for row in _ROW_LENGTHS if (-sizes % row).sum() <= allowed), _ROW_LENGTHS[-1])


def _storable(flat: Tensor) -> Tensor:
    """Return 8-bit floats as bytes, for torch cannot concatenate them everywhere."""
    return flat.view(torch.uint8) if flat.dtype.itemsize == 1 else flat
