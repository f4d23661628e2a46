"""Matrices of recorded steps by tensors: what their gradients and updates were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradmedic.errors import InputError
from gradmedic.record import Run
from gradmedic.report.views.order import TensorRow, tensor_rows
from gradmedic.report.views.source import Floats, Integers, Places, Source, source_of

#: What can be shown of tensors; True where the values span many orders of magnitude.
TENSOR_GRIDS: dict[str, bool] = {
    "norm": True,
    "max_abs": True,
    "update_ratio": True,
    "zero_share": False,
    "cosine_prev": False,
    "nonfinite": True,
    "status": False,
}


@dataclass(frozen=True, slots=True)
class Grid:
    """One statistic over recorded steps and rows.

    Attributes:
        id: which one, a key of `TENSOR_GRIDS` or `modules.MODULE_GRIDS`.
        optimizer: whose steps; None where those of several are joined by their index.
        steps: step indices [S]; those of a restart follow those before it.
        parts: which of several processes made them [S], from 0.
        names: of the rows [P], in execution order, input side first.
        values: [S, P]; NaN where nothing was recorded (no table, or no gradient at that step), plus infinity where
            there were elements that are not finite.
    """

    id: str
    optimizer: str | None
    steps: Integers
    parts: Integers
    names: tuple[str, ...]
    values: Floats


def tensor_grid(
    run: Run | Source, column: str = "norm", optimizer: str | None = None, *, rows: list[TensorRow] | None = None
) -> Grid:
    """Return one statistic of the recorded tensors, in execution order.

    Args:
        run: a run, or the source of several views of it.
        column: "norm", "max_abs"; "update_ratio" (size of the update over that of the weights, which holds until it is
            measured again); "zero_share"; "cosine_prev"; "nonfinite" (elements); "status" (0 measured, 1 no gradient,
            2 not visible).
        optimizer: only its tensors; by default those of all, joined by step index.
        rows: what `tensor_rows` gave, if it is at hand.

    Returns:
        The grid; without rows where that optimizer recorded no tables.

    Raises:
        InputError: there is no such statistic.

    Example:
        >>> from gradmedic.record import MemoryRecorder
        >>> tensor_grid(MemoryRecorder(meta={}).run, "norm").values.shape
        (0, 0)
    """
    if column not in TENSOR_GRIDS:
        raise InputError(f"no grid {column!r} of tensors; there are: {', '.join(TENSOR_GRIDS)}")
    source = source_of(run)
    name = only_optimizer(source, optimizer)
    places = source.places(name)
    ranks = {row.name: at for at, row in enumerate(tensor_rows(source) if rows is None else rows)}
    order = sorted(range(len(places.names)), key=lambda at: (ranks.get(places.names[at], len(ranks)), at))
    values = _tensor_values(source, places, column)
    names = tuple(places.names[at] for at in order)
    values = values if order == list(range(len(order))) else values[:, order]
    return Grid(column, name, places.steps, places.parts, names, values)


def only_optimizer(source: Source, optimizer: str | None) -> str | None:
    """Return the optimizer that was asked for, or the only one."""
    return source.optimizers[0] if optimizer is None and len(source.optimizers) == 1 else optimizer


def _tensor_values(source: Source, places: Places, column: str) -> Floats:
    if column == "status":
        return places.matrix(source.column("status"))
    if column == "update_ratio":
        return _update_ratio(source, places)
    if column == "nonfinite":
        values = np.nan_to_num(source.column("nan_count")) + np.nan_to_num(source.column("inf_count"))
    elif column == "zero_share":
        numel = source.column("numel")
        values = np.divide(source.column("zero_count"), numel, out=np.full(len(numel), np.nan), where=numel > 0)
    else:
        values = source.column(column)
        if column != "cosine_prev" and source.nonfinite.any():
            values = np.where(source.nonfinite, np.inf, values)
    if source.unseen is not None:
        values = np.where(source.unseen, np.nan, values)
    return places.matrix(values)


def _update_ratio(source: Source, places: Places) -> Floats:
    update = places.matrix(source.column("update_norm"))
    weight = _carried(places.matrix(source.column("weight_norm")), places.parts)
    ratio = np.full(update.shape, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(update, weight, out=ratio, where=(weight > 0) & ~np.isnan(update))
    ratio[np.isinf(update) | np.isinf(weight)] = np.inf
    return ratio


def _carried(values: Floats, parts: Integers) -> Floats:
    """Let each value hold until the next one that was measured, within a process."""
    if not values.size:
        return values
    known = ~np.isnan(values)
    if known.all():
        return values
    first = np.searchsorted(parts, parts)  # where each row's process begins
    last = np.where(known, np.arange(len(values), dtype=np.int32)[:, None], np.int32(-1))
    np.maximum.accumulate(last, axis=0, out=last)
    carried = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    carried[last < first[:, None]] = np.nan
    return carried
