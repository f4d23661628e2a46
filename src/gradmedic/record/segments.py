"""One stream of rows, cut into segments: the last one grows, the closed ones can be thinned and merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradmedic.record.arrays import Array, booleans, to_numpy, valid_of
from gradmedic.record.store import Store
from gradmedic.record.stream import QUICK, TIGHT, StreamEncoder, decode
from gradmedic.record.thinning import Thinning

_ROWS_OF_A_BATCH = 1 << 16
#: Batches below this size are worth joining: each repeats some 3 KB of description.
_SMALL_BATCH = 1 << 16
#: A segment whose first batch is smaller, uncompressed, will be joined when it is closed, and compressed well then.
_QUICK_BATCH = 4 * _SMALL_BATCH


@dataclass(slots=True)
class Segment:
    """A closed segment; `density` is what it was thinned to."""

    name: str
    size: int
    density: tuple[int, int]


class SegmentedStream:
    """Appends batches to segment files, and keeps their total below a limit by thinning the closed ones.

    Used by one thread. Every method may raise OSError; what was written before stays readable then.

    Args:
        store: where the bytes lie.
        schema: of all batches; has "step" and "ordinal".
        prefix: name of a segment without its number and suffix: "steps-0-3f2x9a".
        thinning: decides what stays.
        segment_bytes: a segment that has grown to this size is closed.
    """

    def __init__(self, store: Store, schema: pa.Schema, prefix: str, thinning: Thinning, segment_bytes: int) -> None:
        self.thinning = thinning
        self.segment_bytes = segment_bytes
        self._store, self._schema, self._prefix = store, schema, prefix
        self._closed: list[Segment] = []
        self._closed_bytes = 0
        self._encoder: StreamEncoder | None = None
        self._codec = QUICK
        self._name = ""
        self._size = 0
        self._batches = 0
        self._number = 0
        self._density = thinning.density
        self._description = _description_bytes(schema)
        self.bytes_per_row = 0.0

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._closed_bytes + self._size

    def append(self, batch: pa.RecordBatch, limit: int) -> bool:
        """Write a batch; False, and nothing written, when there is no room for it below `limit` bytes."""
        try:
            data = self._encoded(batch)
            if not self._make_room(len(data), limit):
                self._abandon()  # so that it can be thinned like the others
                data = self._encoded(batch)
                if not self._make_room(len(data), limit):
                    self._abandon()
                    return False
            self._store.append(self._name, data, self._size)
        except Exception:
            self._abandon()
            raise
        self._size += len(data)
        self._batches += 1
        self._learn(batch, len(data))
        if self._size >= self.segment_bytes:
            self.close()
        return True

    def close(self) -> None:
        """End the segment that grows, and join what became small."""
        if self._encoder is None:
            return
        encoder, self._encoder = self._encoder, None
        end = encoder.end()
        self._settle()
        if self._closed and self._closed[-1].name == self._name:
            self._store.append(self._name, end, self._closed[-1].size)
            self._closed[-1].size += len(end)
            self._closed_bytes += len(end)
            self._join_last()

    def _learn(self, batch: pa.RecordBatch, size: int) -> None:
        """Update the bytes of a row, as they are once its batch has been joined with others.

        A slow machine writes batches of few rows; were their descriptions counted, a share of the budget would seem
        to hold less than it does.
        """
        if self._batches == 1 and self.bytes_per_row:  # with it came the schema
            return
        # Each column of a batch is padded besides: a few rows take more bytes in the file than in memory.
        rate = min(max(0, size - self._description), batch.get_total_buffer_size()) / max(1, batch.num_rows)
        self.bytes_per_row = rate if not self.bytes_per_row else 0.8 * self.bytes_per_row + 0.2 * rate

    def _encoded(self, batch: pa.RecordBatch) -> bytes:
        if self._encoder is None:
            self._name = f"{self._prefix}-{self._number:05d}.arrows"
            self._number += 1
            self._size = self._batches = 0
            self._density = self.thinning.density
            self._codec = QUICK if batch.get_total_buffer_size() < _QUICK_BATCH else TIGHT
            self._encoder = StreamEncoder(self._schema, self._codec)
        return self._encoder.encode(batch)

    def _abandon(self) -> None:
        """Stop a segment whose encoder has gone ahead of its file; the next batch begins a new one."""
        self._encoder = None
        self._settle()

    def _settle(self) -> None:
        if self._size:
            self._closed.append(Segment(self._name, self._size, self._density))
            self._closed_bytes += self._size
        self._size = 0

    def _join_last(self) -> None:
        """Join the batches of the newest closed segment, and segments of like size into one: few files, few batches."""
        if self._codec == QUICK or self._closed[-1].size < _SMALL_BATCH * self._batches:
            self._rewrite(len(self._closed) - 1, 1)
        while len(self._closed) > 1:
            before, last = self._closed[-2:]
            if before.size > 2 * last.size or before.size + last.size > self.segment_bytes:
                break
            self._rewrite(len(self._closed) - 2, 2)

    def _make_room(self, need: int, limit: int) -> bool:
        while self.size + need > limit:
            at = self._densest()
            if at is not None:
                pair = at + 1 < len(self._closed) and self._closed[at + 1].density == self._closed[at].density
                together = pair and self._closed[at].size + self._closed[at + 1].size <= 2 * self.segment_bytes
                self._rewrite(at, 2 if together else 1)
            elif not self._closed or not self.thinning.tighten():
                return False
        return True

    def _densest(self) -> int | None:
        """Index of the oldest of the closed segments that can still be thinned, the densest first."""
        now = self.thinning.density
        thick = [at for at, segment in enumerate(self._closed) if segment.density != now]
        return min(thick, key=lambda at: (self._closed[at].density[0], at), default=None)

    def _rewrite(self, at: int, count: int) -> None:
        """Put one thinned and joined segment in the place of `count` closed ones."""
        group = self._closed[at : at + count]
        batches = [batch for part in group for batch in decode(self._store.read(part.name)).batches]
        density = self.thinning.density
        data = self._thinned(batches)
        if data:
            self._store.replace(group[0].name, data)
        # Between these two a reader may meet rows twice; it takes each once.
        for part in group[1:] if data else group:
            self._store.remove(part.name)
        self._closed[at : at + count] = [Segment(group[0].name, len(data), density)] if data else []
        self._closed_bytes = sum(part.size for part in self._closed)

    def _thinned(self, batches: list[pa.RecordBatch]) -> bytes:
        if not batches:
            return b""
        table = pa.Table.from_batches(batches)
        mask = self.thinning.keep(to_numpy(table["step"]), ordinals_of(table))
        if not mask.any():
            return b""
        kept = (table if mask.all() else table.filter(booleans(mask))).unify_dictionaries().combine_chunks()
        encoder = StreamEncoder(self._schema)
        parts = [encoder.encode(batch) for batch in kept.to_batches(max_chunksize=_ROWS_OF_A_BATCH)]
        return b"".join([*parts, encoder.end()])


def ordinals_of(table: pa.Table) -> Array:
    """Return the ordinals [N] of rows, -1 where there is none."""
    ordinals = to_numpy(table["ordinal"])
    valid = valid_of(table["ordinal"])
    return ordinals if valid is None else np.where(valid, ordinals, -1)


def _description_bytes(schema: pa.Schema) -> int:
    """Bytes that a batch takes beside its rows."""
    encoder = StreamEncoder(schema, QUICK)
    # `pa.array` would import pandas where it is installed.
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    encoder.encode(empty)
    return len(encoder.encode(empty))
