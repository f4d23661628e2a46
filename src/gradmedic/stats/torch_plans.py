"""Which rows each tensor fills, in chunks and batches: what follows from the sizes of tensors alone.

The same tensors are measured at every step as a rule, and to work this out takes longer than to measure many small
ones. Plans are therefore kept, by the sizes; they hold numbers of the host only, and no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

#: Elements of a row: the most with which padding stays below a share of the elements.
_ROW_LENGTHS = (1024, 512, 256, 128, 64, 32)
_MOST_PADDING = 1 / 8
#: A parameter group or two of each of a few optimizers, by type.
_KEPT = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pieces of blocks that are reduced together, where a block is a tensor or a part of one.

    Attributes:
        first, end: the blocks of which something is in it, one after the other.
        begin, stop: where the piece of the first block begins, and where that of the last one stops.
        order: what fills whole rows one after the other: block `first + i` by its i, and by `end - first + i` the
            padding of length `pads[i]`.
        owners, rows: for each piece, the position of its tensor, and how many rows it fills.
        filled: sum of `rows`.
    """

    first: int
    end: int
    begin: int
    stop: int
    order: tuple[int, ...]
    pads: tuple[int, ...]
    owners: Counts
    rows: Counts
    filled: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Chunks whose results are joined at once.

    Attributes:
        chunks: at least one, but for tensors without elements.
        rows: number of rows of each run of rows of one tensor.
        filled: sum of `rows`.
    """

    chunks: tuple[Chunk, ...]
    rows: Counts
    filled: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Tensors of given sizes as rows.

    Attributes:
        row: elements of a row.
        rows: number of rows altogether.
        chunk_rows: the most of them that a chunk has.
        padding: elements of padding of each tensor.
        batches: all rows; at least one batch, be it empty.
        runs: in how many runs each tensor lies: none if it is empty, several if batches part it.
    """

    row: int
    rows: int
    chunk_rows: int
    padding: Counts
    batches: tuple[Batch, ...]
    runs: Counts


@lru_cache(maxsize=_KEPT)
def plan_of(sizes: tuple[int, ...], owners: tuple[int, ...] | None, limit: int, most_rows: int) -> Plan:
    """Return the plan of blocks of these sizes.

    Args:
        sizes: elements of each block.
        owners: the position of the tensor of each block, in order; None where each block is a tensor of its own.
        limit: elements that a chunk may have.
        most_rows: how many rows a batch may have.
    """
    elements = np.array(sizes, dtype=np.int64)
    row = _row_length(elements)
    missing = -elements % row
    rows = int((elements + missing).sum()) // row
    places = np.arange(len(sizes), dtype=np.int64) if owners is None else np.array(owners, dtype=np.int64)
    tensors = int(places[-1]) + 1
    batch_rows = min(rows, most_rows)
    chunk_rows = min(batch_rows, limit // row)
    batches: list[Batch] = []
    runs = np.zeros(tensors, dtype=np.int64)
    for chunks in _batched(_chunks(sizes, places, row, chunk_rows), batch_rows):
        batch, its_owners = _batch(chunks)
        batches.append(batch)
        runs += np.bincount(its_owners, minlength=tensors)
    padding = np.bincount(places, missing, tensors).astype(np.int64)
    return Plan(row, rows, chunk_rows, padding, tuple(batches), runs)


def _chunks(sizes: tuple[int, ...], places: Counts, row: int, chunk_rows: int) -> Iterator[Chunk]:
    pieces: list[tuple[int, int, int]] = []  # block, where the piece begins, where it stops
    filled = 0
    for block, size in enumerate(sizes):
        done = 0
        while done < size:
            stop = min(size, done + (chunk_rows - filled) * row)
            pieces.append((block, done, stop))
            filled += -(-(stop - done) // row)
            done = stop
            if filled == chunk_rows:
                yield _chunk(pieces, places, row)
                pieces, filled = [], 0
    if pieces:
        yield _chunk(pieces, places, row)


def _chunk(pieces: list[tuple[int, int, int]], places: Counts, row: int) -> Chunk:
    blocks, begins, stops = np.array(pieces, dtype=np.int64).T
    first, end = int(blocks[0]), int(blocks[-1]) + 1
    lengths = stops - begins
    padded = -lengths % row
    pads, which = np.unique(padded, return_inverse=True)
    # Each piece and its padding; padding of no element is left out.
    order = np.stack([blocks - first, which.reshape(-1) + (end - first)], 1).reshape(-1)
    kept = np.stack([np.ones_like(padded), padded], 1).reshape(-1) > 0
    rows = (lengths + padded) // row
    return Chunk(
        first,
        end,
        int(begins[0]),
        int(stops[-1]),
        tuple(order[kept].tolist()),
        tuple(pads.tolist()),
        places[blocks],
        rows,
        int(rows.sum()),
    )


def _batched(chunks: Iterator[Chunk], batch_rows: int) -> Iterator[list[Chunk]]:
    """Yield lists of chunks that together have no more rows than a batch; at least one list, be it empty."""
    batch: list[Chunk] = []
    filled = 0
    for chunk in chunks:
        if filled + chunk.filled > batch_rows:
            yield batch
            batch, filled = [], 0
        batch.append(chunk)
        filled += chunk.filled
    yield batch


def _batch(chunks: list[Chunk]) -> tuple[Batch, Counts]:
    """Return a batch of chunks, and the tensor of each of its runs; pieces of one tensor follow each other."""
    if not chunks:
        nothing = np.zeros(0, dtype=np.int64)
        return Batch((), nothing, 0), nothing
    owners = np.concatenate([chunk.owners for chunk in chunks])
    rows = np.concatenate([chunk.rows for chunk in chunks])
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return Batch(tuple(chunks), np.add.reduceat(rows, starts), int(rows.sum())), owners[starts]


def _row_length(sizes: Counts) -> int:
    allowed = float(sizes.sum()) * _MOST_PADDING
    return next((row for row in _ROW_LENGTHS if (-sizes % row).sum() <= allowed), _ROW_LENGTHS[-1])
