"""What sampled steps read of activations and of attention on a CPU, by the compiled kernel in one call each.

A torch operation for each part of it would make temporaries, and wait for torch's threads where another process has
the cores.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from gradmedic.stats.native import kernel

#: Work (multiplications) from which on torch's threads are worth having.
_MAX_PRODUCTS = 2**26
#: Elements of a unit, of which 32 bits can count every one.
_MAX_COUNT = 2**31 - 1


def count_units(
    values: torch.Tensor, axis: int, *, above: float = math.nan, high: float = math.nan, low: float = math.nan
) -> torch.Tensor | None:
    """Count, for each unit, the elements that are > above, >= high or <= low.

    Args:
        values: of at least two dimensions.
        axis: that of the units, not the first.
        above, high, low: bounds, as float32; NaN for none.

    Returns:
        int64 [units]; None where the kernel is not there, or the values are no float32 numbers in a CPU's memory whose
        samples (first dimension) have no gaps.
    """
    address = _address(values) if hasattr(kernel(), "count") and 0 < axis < values.dim() else 0
    if not address:
        return None
    if values.numel() == 0 or values.numel() > _MAX_COUNT or not values[0].is_contiguous():
        return None
    shape = values.shape
    rows, run = math.prod(shape[1:axis]), math.prod(shape[axis + 1 :])
    counts = np.empty(shape[axis], dtype=np.int64)
    kernel().count(address, shape[0], values.stride(0), rows, shape[axis], run, above, high, low, counts.ctypes.data)
    return torch.from_numpy(counts)


def attend(
    query: torch.Tensor, key: torch.Tensor, scale: float, *, step: int, first: int, causal: bool
) -> npt.NDArray[np.float64] | None:
    """Measure the attention of some queries, without a mask other than the causal one.

    Args:
        query, key: [samples, heads, rows, depth] and [samples, heads (or a divisor of them), keys, depth].
        scale: of their products.
        step: the rows stand at places 0, step, 2 * step, … of the sequence.
        first: the row from which on entropy is taken.
        causal: whether keys behind a row's place are hidden.

    Returns:
        float64 [3, samples, heads]: mean entropy in nats (0 for rows whose softmax has no numbers); largest logit (NaN
        where there is one); mean weight on places behind a row's own, over rows before the last place. None where the
        kernel is not there, or cannot read these.
    """
    samples, heads, rows, depth = query.shape
    keys, sharing = key.shape[2], heads // max(key.shape[1], 1)
    fits = (samples, heads, depth) == (key.shape[0], sharing * key.shape[1], key.shape[3])
    if not fits or not 0 <= first < rows or not keys:
        return None
    addresses = (_address(query), _address(key)) if hasattr(kernel(), "attention") else (0, 0)
    if not all(addresses):
        return None
    strides = (*query.stride()[:3], *key.stride()[:3])
    if query.stride(3) != 1 or key.stride(3) != 1 or samples * heads * rows * keys * depth > _MAX_PRODUCTS:
        return None
    sizes = (samples, heads, sharing, rows, keys, depth)
    geometry = np.array([*addresses, *sizes, *strides, step, first, causal], dtype=np.int64)
    out = np.empty((3, samples, heads))
    kernel().attention(geometry.ctypes.data, scale, out.ctypes.data)
    return out


def norms_and_means(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the L2 norm and the mean of each unit, float64 [units]; NaN and infinity spread.

    Args:
        values: [samples, units, rows, depth].

    Returns:
        None where the kernel is not there, or cannot read these.
    """
    address = _address(values) if hasattr(kernel(), "sums") else 0
    if not address or values.stride(3) != 1 or values.numel() == 0:
        return None
    geometry, out = np.array([*values.shape, *values.stride()[:3]], dtype=np.int64), np.empty((2, values.shape[1]))
    kernel().sums(address, geometry.ctypes.data, out.ctypes.data)
    return torch.from_numpy(np.sqrt(out[1])), torch.from_numpy(out[0] / (values.numel() // values.shape[1]))


def _address(tensor: torch.Tensor) -> int:
    """Return where this lies if it is float32 in a CPU's memory, as it stands there; 0 for all else.

    Tensors that only pass for one of a CPU have no address: those of tracers and of functorch, efficient zeros, weights
    whose memory was given back.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_cpu and tensor.dtype == torch.float32
    if not plain or tensor.layout is not torch.strided or tensor.is_neg():
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0
