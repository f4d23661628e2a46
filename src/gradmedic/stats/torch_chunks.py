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
#: What the reductions hold at once for each element, in numbers of the type that they compute in.
_HELD = 8
_TEMPORARY_BYTES = 1 << 26
#: A chunk on the CPU stays within its caches.
_CPU_ELEMENTS = 1 << 18


@dataclass(slots=True)
class Chunk:
    """Pieces of tensors that are reduced together.

    Attributes:
        pieces: views of the tensors, of any shape.
        owners: position of the tensor to which each piece belongs; neighbouring pieces may have one owner.
        row: elements of a row.
    """

    pieces: list[Tensor]
    owners: list[int]
    row: int

    def rows(self) -> list[int]:
        """Return how many rows each piece fills, the last being padded."""
        return [-(-piece.numel() // self.row) for piece in self.pieces]

    def padding(self) -> list[int]:
        """Return how many elements of padding each piece has."""
        return [-piece.numel() % self.row for piece in self.pieces]

    def matrix(self, padding: float) -> Tensor:
        """Return the pieces as rows [R, L] of a new tensor, as float64 if short or of a wide type, else as float32."""
        parts: list[Tensor] = []
        pads: dict[int, Tensor] = {}
        for piece, missing in zip(self.pieces, self.padding(), strict=True):
            part = _readable(piece).reshape(-1)
            parts.append(part)
            if missing:
                if missing not in pads:
                    pads[missing] = part.new_full((missing,), padding)
                parts.append(pads[missing])
        flat = torch.cat(parts)  # a copy even of a single part: it will be overwritten
        if flat.is_complex():
            nan = flat.isnan()
            flat = flat.to(torch.complex128).abs().masked_fill_(nan, math.nan)
        flat = flat.to(_compute_dtype(flat.dtype, self.row))
        return flat.view(flat.shape[0] // self.row, self.row)


def chunks(tensors: list[Tensor]) -> Iterator[Chunk]:
    """Cut tensors of one device and type; the order is kept among small and among large tensors."""
    for row in (SHORT_ROW, LONG_ROW):
        limit = _limit(tensors[0], row)
        chunk, filled = Chunk([], [], row), 0
        for owner, tensor in enumerate(tensors):
            if (tensor.numel() < SMALL) != (row == SHORT_ROW):
                continue
            for piece in _pieces(tensor, limit):
                size = piece.numel() + -piece.numel() % row
                if filled + size > limit and chunk.pieces:
                    yield chunk
                    chunk, filled = Chunk([], [], row), 0
                chunk.pieces.append(piece)
                chunk.owners.append(owner)
                filled += size
        if chunk.pieces:
            yield chunk


def _compute_dtype(dtype: torch.dtype, row: int) -> torch.dtype:
    """Return the type in which elements of `dtype` are reduced; small tensors can afford the best."""
    wide = dtype == torch.float64 or dtype.is_complex or row == SHORT_ROW
    return torch.float64 if wide else torch.float32


def _limit(example: Tensor, row: int) -> int:
    """Return how many elements a chunk of such tensors may have."""
    limit = _TEMPORARY_BYTES // (_HELD * _compute_dtype(example.dtype, row).itemsize)
    if example.dtype.is_complex:
        limit //= 2
    return min(limit, _CPU_ELEMENTS) if example.device.type == "cpu" else limit


def _pieces(tensor: Tensor, limit: int) -> Iterator[Tensor]:
    """Yield views that together are the tensor, of at most `limit` elements each."""
    flat = flat_view(tensor)
    if flat is not None:
        yield from torch.split(flat, limit) if flat.shape[0] > limit else (flat,)
    elif tensor.numel() <= limit:
        yield tensor
    else:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        for half in tensor.chunk(2, dim=longest):
            yield from _pieces(half, limit)


def _readable(piece: Tensor) -> Tensor:
    """Return 8-bit floats as bfloat16, which holds them all, for torch cannot concatenate them everywhere."""
    return piece.to(torch.bfloat16) if piece.dtype.itemsize == 1 else piece
