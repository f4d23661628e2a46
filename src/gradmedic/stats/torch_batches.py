"""How the torch backend goes over its rows: chunk by chunk, what is left of many of them being joined at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from gradmedic.stats.torch_chunks import Chunk, Layout


@dataclass(slots=True)
class Batch:
    """What is left of the rows of several chunks.

    Attributes:
        results: [K, R] of the type in which rows are reduced.
        owners, rows: for each run of rows, the position of its tensor, and the number of rows.
        filled: sum of `rows`.
    """

    results: Tensor
    owners: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    filled: int = 0

    def add(self, chunk: Chunk) -> Tensor:
        """Take in the runs of a chunk, and return where the results of its rows belong."""
        for owner, rows in zip(chunk.owners, chunk.rows, strict=True):
            if self.owners and self.owners[-1] == owner:
                self.rows[-1] += rows
            else:
                self.owners.append(owner)
                self.rows.append(rows)
        self.filled += chunk.filled
        return self.results.narrow(1, self.filled - chunk.filled, chunk.filled)

    def complete(self) -> Batch:
        """Return the batch without the room that is left."""
        self.results = self.results.narrow(1, 0, self.filled)
        return self


def batches(layout: Layout, columns: int, reduce: Callable[[Tensor, Chunk, Tensor], None]) -> Iterator[Batch]:
    """Reduce all rows, and yield the results whenever there are many, and at the end.

    Args:
        layout: what to reduce.
        columns: K, how many numbers are left of each row.
        reduce: called with the rows [R, L] of each chunk, which it may consume, the chunk, and where to write [K, R].

    Yields:
        At least one batch, be it empty.
    """
    left = layout.rows
    batch = Batch(layout.empty(columns, min(left, layout.batch_rows)))
    buffer = layout.empty(layout.chunk_rows, layout.row)
    for chunk in layout.chunks():
        if batch.filled + chunk.filled > batch.results.shape[1]:
            yield batch.complete()
            batch = Batch(layout.empty(columns, min(left, layout.batch_rows)))
        reduce(layout.fill(chunk, buffer), chunk, batch.add(chunk))
        left -= chunk.filled
    yield batch.complete()
