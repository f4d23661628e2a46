"""The native backend: one pass over dense CPU tensors in C, on several threads, without the GIL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gradmedic.errors import InputError
from gradmedic.stats.inputs import flat_view
from gradmedic.stats.table import StatsTable
from gradmedic.stats.team import TorchThreads
from gradmedic.types import HISTOGRAM_BINS

try:
    from gradmedic.stats import _native
except ImportError:  # no compiler at hand when gradmedic was installed
    if not TYPE_CHECKING:
        _native = None

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Elements from which on a second thread may help; see TEAM_ITEMS in _native_job.h.
_WORTH_THREADS = 1 << 19
#: Bound on the copy of a tensor that has gaps in memory.
_COPY_BYTES = 1 << 26

_TORCH_THREADS = TorchThreads()

# The order is that of the enumeration in _native.c.
_QUESTIONS: tuple[Any, ...] = (
    (Tensor, torch.nn.Parameter),
    DTYPES,
    torch.strided,
    "dtype",
    "is_cpu",
    "layout",
    Tensor.is_contiguous,
    Tensor.is_neg,
    Tensor.numel,
    Tensor.data_ptr,
)


def native_available() -> bool:
    """Return whether the compiled extension can be loaded."""
    return _native is not None


def kernel() -> Any:
    """Return the compiled extension, None where it is not there; one of an earlier build has not all functions."""
    return _native


def require_native() -> None:
    """Raise InputError, which says how to build it, where the compiled extension is not there."""
    if _native is None:
        raise InputError(
            "expected the compiled extension for backend='native', and it is not there; install a C compiler and "
            "reinstall with `pip install --force-reinstall --no-deps gradmedic` (in a source tree: `python setup.py "
            "build_ext --inplace`), or use backend='auto'"
        )


def measure(tensors: list[Any], histogram: bool) -> tuple[StatsTable, list[int]]:
    """Return the table of those tensors that can be read in place, and the positions of all others.

    Whatever is not a contiguous, plain CPU tensor of one of `DTYPES` is left out, its row being zero.
    """
    moments = torch.zeros(6, len(tensors), dtype=torch.float64, device="cpu")
    counts = torch.zeros(4, len(tensors), dtype=torch.int64, device="cpu")
    bins = torch.zeros(len(tensors), HISTOGRAM_BINS, dtype=torch.int64, device="cpu") if histogram else None
    threads = _threads()
    where = moments.data_ptr(), counts.data_ptr(), 0 if bins is None else bins.data_ptr()
    left = _native.measure(tensors, _QUESTIONS, *where, threads, _TORCH_THREADS.entry(threads))
    return StatsTable(moments, counts, bins), left


def measure_one(tensor: Tensor) -> tuple[list[float], list[int]] | None:
    """Return moments and counts of one tensor as numbers; None where it cannot be read here.

    The numbers are those of `measure`; no tensors are made of them.

    Args:
        tensor: of any device, type and stride.
    """
    if not native_available() or type(tensor) not in _QUESTIONS[0]:
        return None
    flat = tensor if tensor.is_contiguous() else readable(tensor.detach())
    if flat is None:
        return None
    moments, counts = np.empty(6), np.empty(4, dtype=np.int64)
    threads = 1 if flat.numel() < _WORTH_THREADS else _threads()
    where = moments.ctypes.data, counts.ctypes.data, 0
    if _native.measure([flat], _QUESTIONS, *where, threads, _TORCH_THREADS.entry(threads)):
        return None
    return moments.tolist(), counts.tolist()


def multiply(tensors: list[Any], factors: Sequence[float]) -> list[int]:
    """Multiply each tensor in place by its factor, in one call; returns the positions of those that were left alone.

    Whatever is not a contiguous, plain CPU tensor of float32 or float64 is. The bits are torch's, and autograd is told
    that the others have changed. A factor of exactly 1 saves the pass over memory.

    Args:
        tensors: N tensors; what several of them have in common is multiplied several times, as by torch.
        factors: one for each.
    """
    if _native is None or not hasattr(_native, "multiply"):
        return list(range(len(tensors)))
    numbers = np.array(factors, dtype=np.float64)
    threads = _threads()
    left = _native.multiply(tensors, _QUESTIONS, numbers.ctypes.data, threads, _TORCH_THREADS.entry(threads))
    if left:
        others = set(left)
        increment_version([tensor for at, tensor in enumerate(tensors) if at not in others])
    else:
        increment_version(tensors)
    return left


def samples_available() -> bool:
    """Return whether the compiled extension can read and compare sampled coordinates."""
    return _native is not None and hasattr(_native, "gather")


def gather(tensors: list[Any], geometry: npt.NDArray[np.int64], values: Tensor) -> list[int]:
    """Read sampled coordinates into `values`, float32 or float64 on the CPU; returns the positions that were left out.

    Args:
        tensors: N tensors; None, and whatever `measure` would leave out, is left out.
        geometry: int64 [6, N], contiguous: elements of the tensor; then offset, step, number and length of the runs
            that are read; and their place among the values.
        values: where they go; long enough for all of them.
    """
    wide = values.dtype == torch.float64
    return _native.gather(tensors, _QUESTIONS, geometry.ctypes.data, values.data_ptr(), wide)


def compare(one: Tensor, other: Tensor, geometry: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return float64 [5, N]: squared differences, equal values, dot product, squares of `one` and of `other`.

    Args:
        one, other: two readings of `gather`, of one type.
        geometry: that of the readings.
    """
    sums = np.empty((5, geometry.shape[1]))
    wide = one.dtype == torch.float64
    _native.compare(one.data_ptr(), other.data_ptr(), wide, geometry.ctypes.data, geometry.shape[1], sums.ctypes.data)
    return sums


def readable(tensor: Tensor) -> Tensor | None:
    """Return the plain strided tensor in a form that `measure` can read in place, or None where it cannot."""
    if tensor.device.type != "cpu" or tensor.dtype not in DTYPES:
        return None
    flat = flat_view(tensor.resolve_neg())
    if flat is None:
        if tensor.numel() * tensor.element_size() > _COPY_BYTES:
            return None
        flat = tensor.reshape(-1)
    return flat if flat.data_ptr() % flat.element_size() == 0 else flat.clone()


def _threads() -> int:
    """Return how many threads may work: as many as torch uses, and no more than the cores that we may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, torch.get_num_threads())
