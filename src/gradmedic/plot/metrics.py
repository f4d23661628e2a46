"""The statistics that figures show by layer or tensor, and how those of its tensors make that of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gradmedic.errors import InputError
from gradmedic.record.arrays import Array
from gradmedic.report.views import joint_norms

_Columns = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Metric:
    """One statistic.

    Attributes:
        columns: columns of the record's tensor table that it needs.
        joined: from those columns, each [S, P] with the tensors of a layer side by side, and the places [L] where
            layers begin, to values [S, L].
        log: whether it is drawn on a logarithmic scale.
    """

    columns: tuple[str, ...]
    joined: Callable[[_Columns, Array], Array]
    log: bool = True


def metric_named(name: str) -> Metric:
    """Return a metric of tensors.

    Raises:
        InputError: there is none of that name.
    """
    if name not in METRICS:
        raise InputError(f"metric must be one of {', '.join(METRICS)}, not {name!r}")
    return METRICS[name]


def _joint(values: Array, starts: Array) -> Array:
    """Return the joint norms [S, L] of norms [S, P]."""
    return joint_norms(values, [range(*bounds) for bounds in pairwise([*starts.tolist(), values.shape[1]])])


def _nan_reduce(reduce: np.ufunc, values: Array, starts: Array) -> Array:
    fill = -np.inf if reduce is np.maximum else 0.0
    known = ~np.isnan(values)
    made = reduce.reduceat(np.where(known, values, fill), starts, axis=1)
    return np.where(np.logical_or.reduceat(known, starts, axis=1), made, np.nan)


def _weighted(values: Array, weights: Array, starts: Array) -> Array:
    """Return means [S, L], weighted; where a value is not known its weight does not count."""
    weights = np.where(np.isnan(values), np.nan, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        made: Array = _nan_reduce(np.add, values * weights, starts) / _nan_reduce(np.add, weights, starts)
    return made


def carried_forward(values: Array) -> Array:
    """Return values [S, P] with what is not known replaced by the last that is."""
    places = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    return np.take_along_axis(values, np.maximum.accumulate(places, axis=0), axis=0)


def _largest(columns: _Columns, starts: Array) -> Array:
    return _nan_reduce(np.maximum, columns["max_abs"], starts)


def _mean_abs(columns: _Columns, starts: Array) -> Array:
    return _weighted(columns["mean_abs"], columns["numel"], starts)


def _rms(columns: _Columns, starts: Array) -> Array:
    count = _nan_reduce(np.add, columns["numel"], starts)
    return _joint(columns["norm"], starts) / np.sqrt(np.maximum(count, 1.0))


def _update_ratio(columns: _Columns, starts: Array) -> Array:
    weights = _joint(carried_forward(columns["weight_norm"]), starts)
    return _joint(columns["update_norm"], starts) / np.where(weights > 0, weights, np.nan)


def _zero_share(columns: _Columns, starts: Array) -> Array:
    count = _nan_reduce(np.add, columns["numel"], starts)
    return _nan_reduce(np.add, columns["zero_count"], starts) / np.maximum(count, 1.0)


def _cosine(columns: _Columns, starts: Array) -> Array:
    return _weighted(columns["cosine_prev"], columns["norm"], starts)


METRICS: Mapping[str, Metric] = {
    "norm": Metric(("norm",), lambda columns, starts: _joint(columns["norm"], starts)),
    "max_abs": Metric(("max_abs",), _largest),
    "mean_abs": Metric(("mean_abs", "numel"), _mean_abs),
    "rms": Metric(("norm", "numel"), _rms),
    "update_ratio": Metric(("update_norm", "weight_norm"), _update_ratio),
    "weight_norm": Metric(("weight_norm",), lambda columns, starts: _joint(columns["weight_norm"], starts)),
    "zero_share": Metric(("zero_count", "numel"), _zero_share, log=False),
    "cosine_prev": Metric(("cosine_prev", "norm"), _cosine, log=False),
}
