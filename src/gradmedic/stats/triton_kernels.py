"""The Triton kernel that measures many tensors at once: statistics of their chunks.

Imported only where Triton is: it decides at import whether kernels are compiled or interpreted. A chunk is a piece of
one tensor that one program reads, once, from front to back; tensors are found through a table of addresses on the
device. Atomics count bins, in shared memory, and add up nothing else: results are the same at every run.

Annotations are objects here, not strings: Triton tells constants by them. No tuple is handed over or lies within
another one, for Triton 3.2, which comes with torch 2.6, compiles neither.
"""

import triton
import triton.language as tl

from gradmedic.stats.triton_element_kernels import elements_at, whole_block, widened

#: Rows of the statistics of chunks, float64 [PARTIALS, C]; what lies between units and the end is in units of the unit.
FINITE, ZEROS, NAN, INF, MAX_ABS, MIN_ABS, UNIT, MEAN, MEAN_ABS, SCATTER = range(10)
PARTIALS = 10
#: Bins that are kept, and bins that are counted: beyond the kept ones lie zeros and what is not finite.
BINS = tl.constexpr(64)
ALL_BINS = tl.constexpr(128)


@triton.jit
def _unit_of(max_abs, WIDE: tl.constexpr):
    """Power of two in (max_abs / 2, max_abs], kept normal together with its reciprocal."""
    if WIDE:
        power = (max_abs.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
        unit = tl.minimum(tl.maximum(power, 2.2250738585072014e-308), 4.49423283715579e307)
    else:
        power = (max_abs.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        unit = tl.minimum(tl.maximum(power, 1.1754943508222875e-38), 8.507059173023462e37)
    return unit


@triton.jit
def _bins_within(x, WIDE: tl.constexpr):
    """Bin of each element, by its exponent; zeros are put into the first one, and what is not finite into the last."""
    if WIDE:
        field = ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - (1023 - 48)
    else:
        field = ((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - (127 - 48)
    return tl.minimum(tl.maximum(field, 0), BINS - 1)


@triton.jit
def _block(pointers, valid, ELEMENT: tl.constexpr, WIDE: tl.constexpr):
    """Statistics of one block of elements that stay in registers, with the elements and which of them are counted."""
    x = widened(tl.load(pointers, mask=valid, other=0), ELEMENT)
    magnitude = tl.abs(x)
    nan = (x != x) & valid
    inf = (magnitude == float("inf")) & valid
    zero = (x == 0.0) & valid
    finite = valid & (magnitude < float("inf"))
    count = tl.sum(finite.to(tl.int32), 0)
    max_abs = tl.max(tl.where(finite, magnitude, 0.0), 0)
    min_abs = tl.min(tl.where(finite, magnitude, float("inf")), 0)
    unit = _unit_of(max_abs, WIDE)
    y = tl.where(finite, x, 0.0) * (1.0 / unit)
    n = tl.maximum(count, 1).to(y.dtype)
    centre = tl.sum(y, 0) / n
    deviation = tl.where(finite, y - centre, 0.0)
    # The centre is rounded; what remains of the sum corrects both the mean and the scatter.
    remainder = tl.sum(deviation, 0).to(tl.float64)
    correction = remainder / n.to(tl.float64)
    mean = centre.to(tl.float64) + correction
    scatter = tl.maximum(tl.sum(deviation * deviation, 0).to(tl.float64) - remainder * correction, 0.0)
    mean_abs = (tl.sum(tl.abs(y), 0) / n).to(tl.float64)
    nans, infs, zeros = tl.sum(nan.to(tl.int32), 0), tl.sum(inf.to(tl.int32), 0), tl.sum(zero.to(tl.int32), 0)
    high, low = max_abs.to(tl.float64), min_abs.to(tl.float64)
    return x, finite & (x != 0.0), count, nans, infs, zeros, high, low, unit.to(tl.float64), mean, mean_abs, scatter


@triton.jit
def _joined(n, unit, mean, mean_abs, scatter, count, more_unit, more_mean, more_mean_abs, more_scatter):
    """Join the statistics of a block to those of the blocks before it (Chan, Golub, LeVeque 1979), in float64."""
    common = tl.maximum(unit, more_unit)
    ratio, more_ratio = unit / common, more_unit / common
    more = count.to(tl.float64)
    share = more / tl.maximum(n + more, 1.0)
    delta = more_mean * more_ratio - mean * ratio
    scatter = scatter * ratio * ratio + more_scatter * more_ratio * more_ratio + delta * delta * n * share
    mean_abs = mean_abs * ratio * (1.0 - share) + more_mean_abs * more_ratio * share
    return n + more, common, mean * ratio + delta * share, mean_abs, scatter


@triton.jit
def _measure_with_care(
    base, length, out, bins, n_chunks, ELEMENT: tl.constexpr, WIDE: tl.constexpr, HISTOGRAM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the statistics of a chunk of any values, block by block, each in units of its own largest magnitude."""
    lanes = tl.arange(0, BLOCK)
    n = tl.zeros((), tl.float64)
    nan, inf, zeros = tl.zeros((), tl.int64), tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    max_abs, min_abs = tl.zeros((), tl.float64), tl.zeros((), tl.float64) + float("inf")
    unit = tl.zeros((), tl.float64) + 2.2250738585072014e-308
    mean, mean_abs, scatter = tl.zeros((), tl.float64), tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    counted = tl.zeros((ALL_BINS,), tl.int32)
    for at in range(0, length, BLOCK):
        valid = at + lanes < length
        x, kept, count, nans, infs, nulls, high, low, block_unit, block_mean, block_mean_abs, block_scatter = _block(
            base + at + lanes, valid, ELEMENT, WIDE
        )
        n, unit, mean, mean_abs, scatter = _joined(
            n, unit, mean, mean_abs, scatter, count, block_unit, block_mean, block_mean_abs, block_scatter
        )
        nan, inf, zeros = nan + nans, inf + infs, zeros + nulls
        max_abs, min_abs = tl.maximum(max_abs, high), tl.minimum(min_abs, low)
        if HISTOGRAM:
            counted += tl.histogram(tl.where(kept, _bins_within(x, WIDE), BINS), ALL_BINS)
    tl.store(out, n)
    tl.store(out + 1 * n_chunks, zeros.to(tl.float64))
    tl.store(out + 2 * n_chunks, nan.to(tl.float64))
    tl.store(out + 3 * n_chunks, inf.to(tl.float64))
    tl.store(out + 4 * n_chunks, max_abs)
    tl.store(out + 5 * n_chunks, min_abs)
    tl.store(out + 6 * n_chunks, unit)
    tl.store(out + 7 * n_chunks, mean)
    tl.store(out + 8 * n_chunks, mean_abs)
    tl.store(out + 9 * n_chunks, scatter)
    if HISTOGRAM:
        places = tl.arange(0, ALL_BINS)
        tl.store(bins + places, counted, mask=places < BINS)


@triton.jit
def _gathered(
    loaded, valid, centre, sums, squares, absolute, high, low, zeros, MASKED: tl.constexpr, ELEMENT: tl.constexpr
):
    """Add a block to what each lane has gathered: about ten instructions an element, and nothing between lanes."""
    x = widened(loaded, ELEMENT)
    magnitude, apart, zero = tl.abs(x), x - centre, x == 0.0
    if MASKED:
        apart, zero = tl.where(valid, apart, 0.0), zero & valid
        low = tl.minimum(low, tl.where(valid, magnitude, float("inf")))
    else:
        low = tl.minimum(low, magnitude)
    squares = tl.fma(apart, apart, squares)
    high = tl.maximum(high, magnitude)
    return x, sums + apart, squares, absolute + magnitude, high, low, zeros + zero.to(tl.int32)


@triton.jit(do_not_specialize=["first_chunk", "n_chunks", "chunk_length"])
def measure_chunks(
    addresses,
    numels,
    owners,
    starts,
    first_chunk,
    chunk_length,
    partials,
    bins,
    n_chunks,
    ELEMENT: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HISTOGRAM: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Write the statistics of chunk `first_chunk + program`, float64 [PARTIALS, n_chunks], and its bins int32 [.., 64].

    One read of each element. `addresses`, `numels` int64 [N]; `owners` int32, `starts` int64 [n_chunks].

    Lanes gather by themselves and meet once, at the end: to meet at every block, with its barriers, takes longer than
    to read the block. They gather plain float32 sums, which neither overflow nor vanish where the largest magnitude is
    moderate and all is finite; they do so about the mean of the chunk's first block. That mean has a share of the
    chunk's own scatter, so that what cancels is at most a factor of BLOCK / chunk_length. Any other chunk, which is
    rare, is read a second time, with care.
    """
    chunk = (first_chunk + tl.program_id(0)).to(tl.int64)
    owner = tl.load(owners + chunk)
    start = tl.load(starts + chunk)
    length = tl.minimum(tl.load(numels + owner) - start, chunk_length).to(tl.int32)
    base = elements_at(tl.load(addresses + owner), ELEMENT) + start
    lanes = tl.arange(0, BLOCK)

    sample = widened(tl.load(base + lanes, mask=lanes < length, other=0), ELEMENT)
    # A length of 0, which no chunk has by itself, stands for a captured step whose turn it is not.
    centre = tl.sum(sample, 0) / tl.maximum(tl.minimum(length, BLOCK), 1).to(sample.dtype)
    nothing = tl.zeros((BLOCK,), sample.dtype)
    sums, squares, absolute, high, low = nothing, nothing, nothing, nothing, nothing + float("inf")
    zero = tl.zeros((BLOCK,), tl.int32)
    counted = tl.zeros((BINS,), tl.int32)
    # Whole groups of blocks need no mask, which would forbid wide loads.
    whole = length // (BLOCK * GROUP)
    for at in range(whole):
        first = base + at * (BLOCK * GROUP)
        for pair in tl.static_range(GROUP // 2):
            one = tl.load(whole_block(first + 2 * pair * BLOCK, ALIGNED, BLOCK))
            two = tl.load(whole_block(first + (2 * pair + 1) * BLOCK, ALIGNED, BLOCK))
            x, sums, squares, absolute, high, low, zero = _gathered(
                one, lanes >= 0, centre, sums, squares, absolute, high, low, zero, False, ELEMENT
            )
            y, sums, squares, absolute, high, low, zero = _gathered(
                two, lanes >= 0, centre, sums, squares, absolute, high, low, zero, False, ELEMENT
            )
            if HISTOGRAM:
                both = tl.reshape(tl.join(x, y), (2 * BLOCK,))
                counted += tl.histogram(_bins_within(both, WIDE), BINS)
    padding = 0
    for at in range(whole * (BLOCK * GROUP), length, BLOCK):
        valid = at + lanes < length
        loaded = tl.load(base + at + lanes, mask=valid, other=0)
        x, sums, squares, absolute, high, low, zero = _gathered(
            loaded, valid, centre, sums, squares, absolute, high, low, zero, True, ELEMENT
        )
        padding = at + BLOCK - length
        if HISTOGRAM:
            counted += tl.histogram(_bins_within(x, WIDE), BINS)

    absolute_sum, max_abs = tl.sum(absolute.to(tl.float64), 0), tl.max(high, 0).to(tl.float64)
    least: tl.constexpr = 2.0**-400 if WIDE else 2.0**-40
    most: tl.constexpr = 2.0**400 if WIDE else 2.0**50
    out = partials + chunk
    # Not so where a NaN is among the magnitudes.
    if (absolute_sum < float("inf")) & (max_abs <= most) & ((max_abs >= least) | (max_abs == 0.0)):
        n = length.to(tl.float64)
        zeros = tl.sum(zero, 0)
        shift = tl.sum(sums.to(tl.float64), 0) / tl.maximum(n, 1.0)
        scatter = tl.maximum(tl.sum(squares.to(tl.float64), 0) - shift * shift * n, 0.0)
        tl.store(out, n)
        tl.store(out + 1 * n_chunks, zeros.to(tl.float64))
        tl.store(out + 2 * n_chunks, 0.0)
        tl.store(out + 3 * n_chunks, 0.0)
        tl.store(out + 4 * n_chunks, max_abs)
        tl.store(out + 5 * n_chunks, tl.min(low, 0).to(tl.float64))
        tl.store(out + 6 * n_chunks, 1.0)
        tl.store(out + 7 * n_chunks, centre.to(tl.float64) + shift)
        tl.store(out + 8 * n_chunks, absolute_sum / tl.maximum(n, 1.0))
        tl.store(out + 9 * n_chunks, scatter)
        if HISTOGRAM:
            places = tl.arange(0, BINS)
            # Zeros, and the lanes beyond the end, were put into the first bin.
            tl.store(bins + chunk * BINS + places, tl.where(places == 0, counted - zeros - padding, counted))
    else:
        _measure_with_care(base, length, out, bins + chunk * BINS, n_chunks, ELEMENT, WIDE, HISTOGRAM, BLOCK)
