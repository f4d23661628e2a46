"""How the torch backend goes over its rows: chunk by chunk, what is left of many of them being joined at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from gradmedic.stats.torch_chunks import Layout
from gradmedic.stats.torch_plans import Batch, Chunk


def batches(
    layout: Layout, columns: int, reduce: Callable[[Tensor, Chunk, Tensor], None]
) -> Iterator[tuple[Tensor, Batch]]:
    """Reduce all rows, and yield the results whenever there are many, and at the end.

    Args:
        layout: what to reduce.
        columns: K, how many numbers are left of each row.
        reduce: called with the rows [R, L] of each chunk, which it may consume, the chunk, and where to write [K, R].

    Yields:
        (results [K, R] of the type in which rows are reduced, the batch whose rows they are of); at least one, be it
        empty.
    """
    buffer = layout.empty(layout.chunk_rows, layout.row)
    for batch in layout.batches:
        results, done = layout.empty(columns, batch.filled), 0
        for chunk in batch.chunks:
            reduce(layout.fill(chunk, buffer), chunk, results.narrow(1, done, chunk.filled))
            done += chunk.filled
        yield results, batch
