"""The Triton kernel that combines the statistics of chunks by tensors.

Annotations are objects here, not strings: Triton tells constants by them.
"""

import triton
import triton.language as tl

from gradmedic.stats.triton_kernels import BINS


@triton.jit(do_not_specialize=["n_tensors", "n_chunks"])
def combine_chunks(
    partials,
    bins,
    first_chunks,
    numels,
    positions,
    moments,
    counts,
    histogram,
    n_tensors,
    n_chunks,
    HISTOGRAM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the row of one tensor a program from those of its chunks: float64 [6, N], int64 [4, N], int64 [N, 64].

    Chunks `first_chunks[i]` to `first_chunks[i + 1]` (int64 [N + 1]) belong to tensor i, whose row is `positions[i]`.
    """
    tensor = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + tensor)
    first, last = tl.load(first_chunks + tensor), tl.load(first_chunks + tensor + 1)
    lanes = tl.arange(0, BLOCK)
    finite = tl.zeros((BLOCK,), tl.float64)
    zeros, nan, inf = finite, finite, finite
    highs, lows, units = finite, finite + float("inf"), finite + 2.2250738585072014e-308
    for start in range(first, last, BLOCK):
        at, there = partials + start + lanes, start + lanes < last
        finite += tl.load(at, mask=there, other=0.0)
        zeros += tl.load(at + 1 * n_chunks, mask=there, other=0.0)
        nan += tl.load(at + 2 * n_chunks, mask=there, other=0.0)
        inf += tl.load(at + 3 * n_chunks, mask=there, other=0.0)
        highs = tl.maximum(highs, tl.load(at + 4 * n_chunks, mask=there, other=0.0))
        lows = tl.minimum(lows, tl.load(at + 5 * n_chunks, mask=there, other=float("inf")))
        units = tl.maximum(units, tl.load(at + 6 * n_chunks, mask=there, other=0.0))
    n, unit = tl.sum(finite, 0), tl.max(units, 0)
    some = tl.maximum(n, 1.0)

    sums, absolute = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(first, last, BLOCK):
        at, there = partials + start + lanes, start + lanes < last
        weight = tl.load(at, mask=there, other=0.0) * (tl.load(at + 6 * n_chunks, mask=there, other=0.0) / unit)
        sums += weight * tl.load(at + 7 * n_chunks, mask=there, other=0.0)
        absolute += weight * tl.load(at + 8 * n_chunks, mask=there, other=0.0)
    mean, mean_abs = tl.sum(sums, 0) / some, tl.sum(absolute, 0) / some

    scatters = tl.zeros((BLOCK,), tl.float64)
    for start in range(first, last, BLOCK):
        at, there = partials + start + lanes, start + lanes < last
        ratio = tl.load(at + 6 * n_chunks, mask=there, other=0.0) / unit
        apart = tl.load(at + 7 * n_chunks, mask=there, other=0.0) * ratio - mean
        within = tl.load(at + 9 * n_chunks, mask=there, other=0.0) * ratio * ratio
        scatters += within + tl.load(at, mask=there, other=0.0) * apart * apart
    scatter = tl.sum(scatters, 0)

    tl.store(moments + position, tl.sqrt(scatter + n * mean * mean) * unit)
    tl.store(moments + n_tensors + position, tl.max(highs, 0))
    tl.store(moments + 2 * n_tensors + position, tl.where(n > 0, tl.min(lows, 0), 0.0))
    tl.store(moments + 3 * n_tensors + position, mean * unit)
    tl.store(moments + 4 * n_tensors + position, tl.sqrt(scatter / some) * unit)
    tl.store(moments + 5 * n_tensors + position, mean_abs * unit)
    tl.store(counts + position, tl.load(numels + tensor))
    tl.store(counts + n_tensors + position, tl.sum(zeros, 0).to(tl.int64))
    tl.store(counts + 2 * n_tensors + position, tl.sum(nan, 0).to(tl.int64))
    tl.store(counts + 3 * n_tensors + position, tl.sum(inf, 0).to(tl.int64))
    if HISTOGRAM:
        rows, places = tl.arange(0, ROWS)[:, None], tl.arange(0, BINS)[None, :]
        total = tl.zeros((BINS,), tl.int64)
        for start in range(first, last, ROWS):
            there = (start + rows < last) & (places >= 0)
            some_bins = tl.load(bins + (start + rows) * BINS + places, mask=there, other=0)
            total += tl.sum(some_bins.to(tl.int64), 0)
        tl.store(histogram + position * BINS + tl.arange(0, BINS), total)
