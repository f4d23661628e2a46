"""Triton kernels over many tensors at once: statistics of chunks, their combination by tensors, and scaling.

Imported only where Triton is: it decides at import whether kernels are compiled or interpreted. A chunk is a piece of
one tensor that one program reads, once, from front to back; tensors are found through a table of addresses on the
device. Nothing is added up by atomics, so that results are the same at every run.

Annotations are objects here, not strings: Triton tells constants by them.
"""

import triton
import triton.language as tl

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
def _bins_of(x, counted, WIDE: tl.constexpr):
    """Bin of each element: its exponent; for what is not counted one beyond those that are kept."""
    if WIDE:
        field = ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - (1023 - 48)
    else:
        field = ((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - (127 - 48)
    inside = tl.minimum(tl.maximum(field, 0), BINS - 1)
    return tl.where(counted, inside, BINS)


@triton.jit
def _whole_block(first, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Pointers to a block of neighbours; the compiler cannot know how an address from a table is aligned."""
    pointers = first + tl.arange(0, BLOCK)
    if ALIGNED:
        pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), BLOCK)
    return pointers


@triton.jit
def _widened(x, ELEMENT: tl.constexpr):
    """Elements as float32, or as float64 where they are: exactly, subnormal ones of bfloat16 included."""
    if ELEMENT == tl.float64:  # noqa: SIM300
        wide = x
    elif ELEMENT == tl.bfloat16:  # noqa: SIM300
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def _block(pointers, valid, MASKED: tl.constexpr, ELEMENT: tl.constexpr, WIDE: tl.constexpr):
    """Statistics of one block of elements that stay in registers, with the elements and which of them are counted."""
    if MASKED:
        loaded = tl.load(pointers, mask=valid, other=0.0)
    else:
        loaded = tl.load(pointers)
    x = _widened(loaded, ELEMENT)
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
    counts = tl.sum(nan.to(tl.int32), 0), tl.sum(inf.to(tl.int32), 0), tl.sum(zero.to(tl.int32), 0)
    moments = unit.to(tl.float64), mean, mean_abs, scatter
    return x, finite & (x != 0.0), count, counts, max_abs.to(tl.float64), min_abs.to(tl.float64), moments


@triton.jit
def _joined(n, unit, mean, mean_abs, scatter, count, moments):
    """Join the statistics of a block to those of the blocks before it (Chan, Golub, LeVeque 1979), in float64."""
    more_unit, more_mean, more_mean_abs, more_scatter = moments
    common = tl.maximum(unit, more_unit)
    ratio, more_ratio = unit / common, more_unit / common
    more = count.to(tl.float64)
    share = more / tl.maximum(n + more, 1.0)
    delta = more_mean * more_ratio - mean * ratio
    scatter = scatter * ratio * ratio + more_scatter * more_ratio * more_ratio + delta * delta * n * share
    mean_abs = mean_abs * ratio * (1.0 - share) + more_mean_abs * more_ratio * share
    return n + more, common, mean * ratio + delta * share, mean_abs, scatter


@triton.jit(do_not_specialize=["first_chunk", "n_chunks"])
def measure_chunks(
    addresses,
    numels,
    owners,
    starts,
    first_chunk,
    partials,
    bins,
    n_chunks,
    ELEMENT: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HISTOGRAM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write the statistics of chunk `first_chunk + program`, float64 [PARTIALS, n_chunks], and its bins int32 [.., 64].

    One read of each element. `addresses`, `numels` int64 [N]; `owners` int32, `starts` int64 [n_chunks].
    """
    chunk = (first_chunk + tl.program_id(0)).to(tl.int64)
    owner = tl.load(owners + chunk)
    start = tl.load(starts + chunk)
    length = tl.minimum(tl.load(numels + owner) - start, BLOCK * BLOCKS)
    base = tl.load(addresses + owner).to(tl.pointer_type(ELEMENT)) + start
    lanes = tl.arange(0, BLOCK)

    n = tl.zeros((), tl.float64)
    nan, inf, zeros = tl.zeros((), tl.int64), tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    max_abs, min_abs = tl.zeros((), tl.float64), tl.zeros((), tl.float64) + float("inf")
    unit = tl.zeros((), tl.float64) + 2.2250738585072014e-308
    mean, mean_abs, scatter = tl.zeros((), tl.float64), tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    counted = tl.zeros((ALL_BINS,), tl.int32)

    # Whole blocks need no mask, which would forbid wide loads.
    whole = length // BLOCK
    for at in range(whole):
        valid = lanes >= 0
        x, kept, count, counts, high, low, moments = _block(
            _whole_block(base + at * BLOCK, ALIGNED, BLOCK), valid, False, ELEMENT, WIDE
        )
        n, unit, mean, mean_abs, scatter = _joined(n, unit, mean, mean_abs, scatter, count, moments)
        nan, inf, zeros = nan + counts[0], inf + counts[1], zeros + counts[2]
        max_abs, min_abs = tl.maximum(max_abs, high), tl.minimum(min_abs, low)
        if HISTOGRAM:
            counted += tl.histogram(_bins_of(x, kept, WIDE), ALL_BINS)
    if whole * BLOCK < length:
        valid = whole * BLOCK + lanes < length
        x, kept, count, counts, high, low, moments = _block(base + whole * BLOCK + lanes, valid, True, ELEMENT, WIDE)
        n, unit, mean, mean_abs, scatter = _joined(n, unit, mean, mean_abs, scatter, count, moments)
        nan, inf, zeros = nan + counts[0], inf + counts[1], zeros + counts[2]
        max_abs, min_abs = tl.maximum(max_abs, high), tl.minimum(min_abs, low)
        if HISTOGRAM:
            counted += tl.histogram(_bins_of(x, kept, WIDE), ALL_BINS)

    out = partials + chunk
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
        tl.store(bins + chunk * BINS + places, counted, mask=places < BINS)


@triton.jit(do_not_specialize=["n_tensors", "n_chunks"])
def combine_chunks(
    partials,
    bins,
    first_chunks,
    numels,
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

    Chunks `first_chunks[i]` to `first_chunks[i + 1]` (int64 [N + 1]) belong to tensor i.
    """
    tensor = tl.program_id(0).to(tl.int64)
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

    tl.store(moments + tensor, tl.sqrt(scatter + n * mean * mean) * unit)
    tl.store(moments + n_tensors + tensor, tl.max(highs, 0))
    tl.store(moments + 2 * n_tensors + tensor, tl.where(n > 0, tl.min(lows, 0), 0.0))
    tl.store(moments + 3 * n_tensors + tensor, mean * unit)
    tl.store(moments + 4 * n_tensors + tensor, tl.sqrt(scatter / some) * unit)
    tl.store(moments + 5 * n_tensors + tensor, mean_abs * unit)
    tl.store(counts + tensor, tl.load(numels + tensor))
    tl.store(counts + n_tensors + tensor, tl.sum(zeros, 0).to(tl.int64))
    tl.store(counts + 2 * n_tensors + tensor, tl.sum(nan, 0).to(tl.int64))
    tl.store(counts + 3 * n_tensors + tensor, tl.sum(inf, 0).to(tl.int64))
    if HISTOGRAM:
        rows, places = tl.arange(0, ROWS)[:, None], tl.arange(0, BINS)[None, :]
        total = tl.zeros((BINS,), tl.int64)
        for start in range(first, last, ROWS):
            there = (start + rows < last) & (places >= 0)
            some_bins = tl.load(bins + (start + rows) * BINS + places, mask=there, other=0)
            total += tl.sum(some_bins.to(tl.int64), 0)
        tl.store(histogram + tensor * BINS + tl.arange(0, BINS), total)


@triton.jit(do_not_specialize=["first_chunk"])
def scale_chunks(
    addresses,
    numels,
    owners,
    starts,
    first_chunk,
    factors,
    ELEMENT: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Multiply the elements of a chunk by its tensor's factor, float64 [N], in float32 or wider; by 1: not touched."""
    chunk = (first_chunk + tl.program_id(0)).to(tl.int64)
    owner = tl.load(owners + chunk)
    factor = tl.load(factors + owner)
    if factor != 1.0:
        start = tl.load(starts + chunk)
        length = tl.minimum(tl.load(numels + owner) - start, BLOCK * BLOCKS)
        base = tl.load(addresses + owner).to(tl.pointer_type(ELEMENT)) + start
        lanes = tl.arange(0, BLOCK)
        whole = length // BLOCK
        for at in range(whole):
            pointers = _whole_block(base + at * BLOCK, ALIGNED, BLOCK)
            _store_scaled(pointers, tl.load(pointers), factor, lanes >= 0, False, ELEMENT, WIDE)
        if whole * BLOCK < length:
            there = whole * BLOCK + lanes < length
            pointers = base + whole * BLOCK + lanes
            _store_scaled(pointers, tl.load(pointers, mask=there, other=0.0), factor, there, True, ELEMENT, WIDE)


@triton.jit
def _store_scaled(pointers, x, factor, there, MASKED: tl.constexpr, ELEMENT: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        product = x * factor
    else:
        product = (_widened(x, ELEMENT) * factor.to(tl.float32)).to(ELEMENT)
    if MASKED:
        tl.store(pointers, product, mask=there)
    else:
        tl.store(pointers, product)
