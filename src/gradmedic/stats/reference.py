"""The reference: one tensor at a time, in extended precision, as the definitions say.

It is slow and waits for the device; the other backends are held to it, and it settles what is meant in doubt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmedic.stats.table import StatsTable
from gradmedic.types import HISTOGRAM_BINS, HISTOGRAM_FIRST_EXPONENT

_Reals = npt.NDArray[np.floating[Any]]


def measure(tensors: list[Tensor], histogram: bool) -> StatsTable:
    """Return the table [N] of unwrapped tensors, on the CPU."""
    moments = torch.zeros(6, len(tensors), dtype=torch.float64)
    counts = torch.zeros(4, len(tensors), dtype=torch.int64)
    bins = torch.zeros(len(tensors), HISTOGRAM_BINS, dtype=torch.int64) if histogram else None
    for i, tensor in enumerate(tensors):
        x = _elements(tensor)
        finite = x[np.isfinite(x)]
        moments[:, i] = torch.tensor(_moments(finite), dtype=torch.float64)
        counts[:, i] = torch.tensor([x.size, (x == 0).sum(), np.isnan(x).sum(), np.isinf(x).sum()])
        if bins is not None:
            bins[i] = torch.from_numpy(_log2_hist(finite))
    return StatsTable(moments, counts, bins)


def norms(tensors: list[Tensor]) -> Tensor:
    """Return the L2 norms, float64 [N]; NaN and infinity propagate, NaN first."""
    return torch.tensor([_norm_of_all(_elements(tensor)) for tensor in tensors], dtype=torch.float64)


def _elements(tensor: Tensor) -> _Reals:
    """Return the elements of the dense form (their absolute values where complex), float64 [n]."""
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if not dense.is_complex():
        return dense.to(torch.float64).cpu().numpy().ravel()
    values = dense.to(torch.complex128).cpu().resolve_conj().numpy().ravel()
    return np.where(np.isnan(values), np.nan, np.hypot(values.real, values.imag))


def _moments(x: _Reals) -> list[float]:
    if x.size == 0:
        return [0.0] * 6
    magnitude = np.abs(x)
    unit = np.longdouble(magnitude.max()) or np.longdouble(1)  # so that squares fit where long double is float64
    y = x.astype(np.longdouble) / unit
    mean = y.mean()
    values = [np.sqrt((y * y).sum()), 1, magnitude.min() / unit, mean, np.sqrt(((y - mean) ** 2).mean())]
    moments = [float(value * unit) for value in (*values, np.abs(y).mean())]
    moments[1:3] = [float(magnitude.max()), float(magnitude.min())]
    return moments


def _norm_of_all(x: _Reals) -> float:
    finite = x[np.isfinite(x)]
    if finite.size < x.size:
        return float("nan") if np.isnan(x).any() else float("inf")
    return _moments(finite)[0]


def _log2_hist(x: _Reals) -> npt.NDArray[np.int64]:
    _, exponents = np.frexp(np.abs(x[x != 0]))  # |x| = m 2^e with 1/2 <= m < 1
    bins = np.clip(exponents - 1 - HISTOGRAM_FIRST_EXPONENT, 0, HISTOGRAM_BINS - 1)
    return np.bincount(bins, minlength=HISTOGRAM_BINS).astype(np.int64)
