"""The log2 histograms of a run, by layer, at a few steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmedic.plot.scalars import check_optimizer
from gradmedic.plot.steps import Steps, chosen_steps, spread
from gradmedic.plot.tables import Patterns, grouped, matching
from gradmedic.record.arrays import Array, booleans, codes_of, to_numpy, valid_of
from gradmedic.report.views import LayerRow, Source, TensorRow, quantiles_of, tensor_rows
from gradmedic.types import HISTOGRAM_BINS

#: Shares of the elements that a box shows: its whiskers, its ends, its middle, and the largest element.
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Quantiles of |g| among the finite elements that are not zero, at one step.

    Attributes:
        step: its index.
        quantiles: at `SHARES` [R, 6]; NaN for a row without a histogram, or without an element other than zero.
        broken, zero: which rows had NaN or infinity; which had a gradient of zeros only [R].
    """

    step: int
    quantiles: Array
    broken: Array
    zero: Array


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the tensor table that have a histogram, of one step after the other."""

    step: Array
    name: Array
    names: list[str]
    counts: Array
    lowest: Array
    highest: Array
    broken: Array


def boxes_of(
    source: Source, *, per: str, optimizer: str | None, layers: Patterns, steps: Steps, at_most: int
) -> tuple[list[LayerRow], list[TensorRow], list[Boxes], list[int]]:
    """Return the boxes of the chosen layers at up to `at_most` of the chosen steps, evenly spread.

    Returns:
        (layers or tensors, all tensors that they refer to, boxes by step, all steps that have histograms).
    """
    check_optimizer(source, optimizer)
    rows = matching([row for row in tensor_rows(source) if row.trainable], layers)
    groups = grouped(rows, per)
    there = _with_histogram(source, optimizer)
    recorded = np.unique(to_numpy(source.tensors["step"])[there])
    kept = recorded[chosen_steps(recorded, steps)]
    picked = [int(kept[place]) for place in spread(len(kept), at_most)]
    found = _read(source, there & np.isin(to_numpy(source.tensors["step"]), picked))
    boxes = [_boxes(found, step, rows, groups) for step in picked]
    return groups, rows, boxes, [int(step) for step in recorded]


def _with_histogram(source: Source, optimizer: str | None) -> Array:
    """Return which rows of the tensor table have a histogram, bool [rows]."""
    table = source.tensors
    valid = valid_of(table["log2_hist"])
    there: Array = np.ones(table.num_rows, dtype=bool) if valid is None else valid.copy()
    if optimizer is not None:
        codes, names = codes_of(table["optimizer"])
        there &= codes == (names.index(optimizer) if optimizer in names else -1)
    return there


def _read(source: Source, chosen: Array) -> _Rows:
    table = source.tensors
    codes, names = codes_of(table["name"])
    lists = table["log2_hist"].filter(booleans(chosen))
    flat: list[Any] = [to_numpy(chunk.flatten()) for chunk in lists.chunks]
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *flat]).reshape(-1, HISTOGRAM_BINS)
    broken = source.column("nan_count") + source.column("inf_count") > 0
    return _Rows(
        to_numpy(table["step"])[chosen],
        codes[chosen],
        names,
        counts,
        source.column("min_abs")[chosen],
        source.column("max_abs")[chosen],
        broken[chosen],
    )


def _boxes(found: _Rows, step: int, rows: Sequence[TensorRow], groups: Sequence[LayerRow]) -> Boxes:
    # Of a restart that made the same step again, the last one holds.
    place = {found.names[found.name[at]]: int(at) for at in np.flatnonzero(found.step == step)}
    counts = np.zeros((len(groups), HISTOGRAM_BINS))
    lowest, highest = np.full(len(groups), np.nan), np.full(len(groups), np.nan)
    broken, zero = np.zeros(len(groups), dtype=bool), np.zeros(len(groups), dtype=bool)
    for at, group in enumerate(groups):
        own = [place[rows[tensor].name] for tensor in group.tensors if rows[tensor].name in place]
        if not own:
            continue
        counts[at] = found.counts[own].sum(axis=0)
        lowest[at] = np.nan if np.isnan(found.lowest[own]).all() else np.nanmin(found.lowest[own])
        highest[at] = np.nan if np.isnan(found.highest[own]).all() else np.nanmax(found.highest[own])
        broken[at] = found.broken[own].any()
        zero[at] = not counts[at].any() and not broken[at]
    return Boxes(step, quantiles_of(counts, SHARES, lowest, highest), broken, zero)
