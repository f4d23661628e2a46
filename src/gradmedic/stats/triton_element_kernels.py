"""Finding the elements of a tensor in memory, and reading them as float32 or float64: what the Triton kernels share.

Annotations are objects here, not strings: Triton tells constants by them.
"""

import triton
import triton.language as tl


@triton.jit
def whole_block(first, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Pointers to a block of neighbours; the compiler cannot know how an address from a table is aligned."""
    pointers = first + tl.arange(0, BLOCK)
    if ALIGNED:
        pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), BLOCK)
    return pointers


@triton.jit
def widened(x, ELEMENT: tl.constexpr):
    """Elements as float32, or as float64 where they are: exactly, subnormal ones of small types included.

    Those of 8 bits come as bytes: not every card converts them, and one that does not would fail at all kernels.
    """
    if ELEMENT == tl.float64:  # noqa: SIM300
        wide = x
    elif ELEMENT == tl.bfloat16:  # noqa: SIM300
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif ELEMENT == tl.float8e5:  # noqa: SIM300
        wide = (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif ELEMENT == tl.float8e4nv:  # noqa: SIM300
        field = (x & 127).to(tl.int32)
        normal = ((field << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        magnitude = tl.where(field < 8, field.to(tl.float32) * 0.001953125, normal)
        magnitude = tl.where(field == 127, float("nan"), magnitude)
        wide = tl.where(x > 127, -magnitude, magnitude)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def elements_at(address, ELEMENT: tl.constexpr):
    """Pointer to the elements at an address; to their bytes for those of 8 bits."""
    if ELEMENT == tl.float8e5 or ELEMENT == tl.float8e4nv:  # noqa: SIM300
        pointer = address.to(tl.pointer_type(tl.uint8))
    else:
        pointer = address.to(tl.pointer_type(ELEMENT))
    return pointer
