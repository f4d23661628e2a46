"""Triton kernels that change many tensors at once, in place: by a factor for each, by factors of units, by limits.

They find tensors and chunks as `triton_kernels` does. What is not changed is not written: its bits stay, and memory is
spared. Annotations are objects here, not strings: Triton tells constants by them.
"""

import triton
import triton.language as tl

from gradmedic.stats.triton_element_kernels import elements_at, whole_block, widened


@triton.jit
def _chunk(addresses, numels, owners, starts, first_chunk, chunk_length, ELEMENT: tl.constexpr):
    """Find this program's chunk: its tensor, its first element, its length, and where it begins in memory."""
    chunk = (first_chunk + tl.program_id(0)).to(tl.int64)
    owner = tl.load(owners + chunk)
    start = tl.load(starts + chunk)
    length = tl.minimum(tl.load(numels + owner) - start, chunk_length).to(tl.int32)
    return owner, start, length, elements_at(tl.load(addresses + owner), ELEMENT) + start


@triton.jit
def _product(x, factor, ELEMENT: tl.constexpr, WIDE: tl.constexpr):
    """Elements times factors, float64, in float32 or wider."""
    if WIDE:
        product = x * factor
    else:
        product = (widened(x, ELEMENT) * factor.to(tl.float32)).to(ELEMENT)
    return product


@triton.jit
def _scale_block(base, at, length, factor, ELEMENT: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """Multiply the block at `at` of a chunk by a factor; a whole one needs no mask, which would forbid wide access."""
    if at + BLOCK <= length:
        pointers = whole_block(base + at, ALIGNED, BLOCK)
        tl.store(pointers, _product(tl.load(pointers), factor, ELEMENT, WIDE))
    else:
        pointers = base + at + tl.arange(0, BLOCK)
        there = at + tl.arange(0, BLOCK) < length
        tl.store(pointers, _product(tl.load(pointers, mask=there, other=0.0), factor, ELEMENT, WIDE), mask=there)


@triton.jit(do_not_specialize=["first_chunk", "chunk_length"])
def scale_chunks(
    addresses,
    numels,
    owners,
    starts,
    first_chunk,
    chunk_length,
    factors,
    positions,
    ELEMENT: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiply the elements of a chunk by its tensor's factor, in float32 or wider; by 1: not touched.

    The factor of tensor i, float64, stands at `positions[i]`, int64 [N].
    """
    owner, _, length, base = _chunk(addresses, numels, owners, starts, first_chunk, chunk_length, ELEMENT)
    factor = tl.load(factors + tl.load(positions + owner))
    if factor != 1.0:
        for at in range(0, length, BLOCK):
            _scale_block(base, at, length, factor, ELEMENT, WIDE, ALIGNED, BLOCK)


@triton.jit(do_not_specialize=["first_chunk", "chunk_length"])
def scale_units(
    addresses,
    numels,
    owners,
    starts,
    first_chunk,
    chunk_length,
    factors,
    first_factors,
    units,
    inners,
    ELEMENT: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiply the elements of a chunk by the factors of their units; those with a factor of 1 are not touched.

    Element i of tensor t belongs to unit `i // inners[t] % units[t]`, whose factor, float64, stands at
    `first_factors[t]` and onwards; all int64 [N]. A block within one unit is as cheap as one of a whole tensor.
    """
    owner, start, length, base = _chunk(addresses, numels, owners, starts, first_chunk, chunk_length, ELEMENT)
    inner, count = tl.load(inners + owner), tl.load(units + owner)
    mine = factors + tl.load(first_factors + owner)
    lanes = tl.arange(0, BLOCK)
    for at in range(0, length, BLOCK):
        begin, end = start + at, start + tl.minimum(at + BLOCK, length)
        row = begin // inner
        if row == (end - 1) // inner:
            factor = tl.load(mine + row % count)
            if factor != 1.0:
                _scale_block(base, at, length, factor, ELEMENT, WIDE, ALIGNED, BLOCK)
        else:
            # In 32 bits, where a division by element is bearable; of units longer than a block at most one ends in it.
            rest, short = begin - row * inner, tl.minimum(inner, BLOCK).to(tl.int32)
            later = tl.where(
                inner < BLOCK,
                (tl.minimum(rest, BLOCK).to(tl.int32) + lanes) // short,
                (lanes >= inner - rest).to(tl.int32),
            )
            valid = at + lanes < length
            each = tl.load(mine + ((row % count).to(tl.int32) + later) % count.to(tl.int32), mask=valid, other=1.0)
            touched = valid & (each != 1.0)
            pointers = base + at + lanes
            product = _product(tl.load(pointers, mask=touched, other=0.0), each, ELEMENT, WIDE)
            tl.store(pointers, product, mask=touched)


@triton.jit(do_not_specialize=["first_chunk", "chunk_length"])
def limit_chunks(
    addresses,
    numels,
    owners,
    starts,
    first_chunk,
    chunk_length,
    limits,
    loss_scale,
    moments,
    ELEMENT: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    MOMENT: tl.constexpr,
):
    """Clamp the elements of a chunk; NaN and infinities stay, and what is within its limit is not written.

    The limit is `limits`, float64 [N], or where MOMENT names a type the root of `limits` times the element of that type
    at the same place of the tensor at `moments`, int64 [N] addresses (none where that is not positive); times
    `loss_scale`, float64 [1].
    """
    owner, start, length, base = _chunk(addresses, numels, owners, starts, first_chunk, chunk_length, ELEMENT)
    bound, scale = tl.load(limits + owner), tl.load(loss_scale)
    if not WIDE:
        bound, scale = bound.to(tl.float32), scale.to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    for at in range(0, length, BLOCK):
        valid = at + lanes < length
        pointers = base + at + lanes
        if at + BLOCK <= length:
            loaded = tl.load(whole_block(base + at, ALIGNED, BLOCK))
        else:
            loaded = tl.load(pointers, mask=valid, other=0.0)
        x = widened(loaded, ELEMENT)
        if MOMENT is None:
            limit = tl.zeros((BLOCK,), x.dtype) + bound * scale
        else:
            others = elements_at(tl.load(moments + owner), MOMENT) + start
            moment = widened(tl.load(others + at + lanes, mask=valid, other=0.0), MOMENT)
            if WIDE:
                limit = tl.sqrt(moment.to(tl.float64) * bound) * scale
            else:
                limit = tl.sqrt_rn(moment.to(tl.float32) * bound) * scale
            limit = tl.where(moment > 0.0, limit, float("inf"))
        over = valid & (tl.abs(x) > limit) & (tl.abs(x) < float("inf"))
        tl.store(pointers, tl.where(x > 0.0, limit, -limit).to(ELEMENT), mask=over)
