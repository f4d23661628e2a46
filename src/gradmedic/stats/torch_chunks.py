"""How the torch backend cuts tensors: many small ones into one matrix, large ones into several, none beyond a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradmedic.stats.inputs import flat_view

#: Elements of one row. Tensors below `SMALL` elements get short rows, so that little of a row is padding.
LONG_ROW, SHORT_ROW, SMALL = 1024, 32, 1024
#: Bytes per element that the reductions hold at once, as a multiple of the size of the type they compute in.
_HELD = 8
_TEMPORARY_BYTES = 1 << 26
#: A chunk on the CPU stays within its caches.
_CPU_ELEMENTS = 1 << 18


@dataclass(slots=True)
class Chunk:
    """Pieces of tensors that are reduced together.

    Attributes:
        pieces: 1-D tensors.
        owners: position of the tensor to which each piece belongs; neighbouring pieces may have one owner.
        row: elements of a row.
    """

    pieces: list[Tensor]
    owners: list[int]
    row: int

    def rows(self) -> list[int]:
        """Return how many rows each piece fills, the last being padded."""
        return [-(-piece.shape[0] // self.row) for piece in self.pieces]

    def matrix(self, padding: float) -> Tensor:
        """Return the pieces as rows [R, L] of a new tensor, as float32 or, for wide types, float64."""
        parts: list[Tensor] = []
        pads: dict[int, Tensor] = {}
        for piece in self.pieces:
            part = _readable(piece)
            parts.append(part)
            missing = -part.shape[0] % self.row
            if missing:
                if missing not in pads:
                    pads[missing] = part.new_full((missing,), padding)
                parts.append(pads[missing])
        flat = torch.cat(parts)  # a copy even of a single part: it will be overwritten
        if flat.is_complex():
            nan = flat.isnan()
            flat = flat.to(torch.complex128).abs().masked_fill_(nan, math.nan)
        return flat.to(compute_dtype(flat.dtype)).view(flat.shape[0] // self.row, self.row)

    def padding(self) -> list[int]:
        """Return how many elements of padding each piece has."""
        return [-piece.shape[0] % self.row for piece in self.pieces]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which elements of `dtype` are reduced."""
    return torch.float64 if dtype == torch.float64 or dtype.is_complex else torch.float32


def chunks(tensors: list[Tensor]) -> Iterator[Chunk]:
    """Cut tensors of one device and type; the order is kept among small and among large tensors."""
    first = tensors[0]
    limit = _TEMPORARY_BYTES // (_HELD * compute_dtype(first.dtype).itemsize)
    if first.dtype.is_complex:
        limit //= 2
    if first.device.type == "cpu":
        limit = min(limit, _CPU_ELEMENTS)
    for row in (SHORT_ROW, LONG_ROW):
        chunk, filled = Chunk([], [], row), 0
        for owner, tensor in enumerate(tensors):
            if (tensor.numel() < SMALL) != (row == SHORT_ROW):
                continue
            for piece in _pieces(tensor, limit):
                size = piece.shape[0] + -piece.shape[0] % row
                if filled + size > limit and chunk.pieces:
                    yield chunk
                    chunk, filled = Chunk([], [], row), 0
                chunk.pieces.append(piece)
                chunk.owners.append(owner)
                filled += size
        if chunk.pieces:
            yield chunk


def _pieces(tensor: Tensor, limit: int) -> Iterator[Tensor]:
    """Yield 1-D pieces of at most `limit` elements; those of a tensor with gaps in memory are copies."""
    flat = flat_view(tensor)
    if flat is not None:
        yield from torch.split(flat, limit) if flat.shape[0] > limit else (flat,)
    elif tensor.numel() <= limit:
        yield tensor.reshape(-1)
    else:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        for half in tensor.chunk(2, dim=longest):
            yield from _pieces(half, limit)


def _readable(piece: Tensor) -> Tensor:
    """Return 8-bit floats as bfloat16, which holds them all, for torch cannot concatenate them everywhere."""
    return piece.to(torch.bfloat16) if piece.dtype.itemsize == 1 else piece
