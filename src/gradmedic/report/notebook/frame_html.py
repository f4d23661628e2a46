"""One step as a table: its scalars, and the tensors that stand out."""

from __future__ import annotations

import numpy as np

from gradmedic.frame import NONE, NOT_VISIBLE, SEEN, STATUS_NAMES, Frame, TensorTable
from gradmedic.record.arrays import Array
from gradmedic.report.notebook.markup import BROKEN, FAINT, box, escaped, heading, name, number, table

#: Tensors that are shown.
_SHOWN = 8
#: Logged values that are shown.
_LOGGED = 12
_SCALARS = ("loss", "lr", "grad_norm", "grad_norm_post", "clip_threshold", "clip_scale", "loss_scale", "micro_batches")
_COLUMNS = ("norm", "max_abs", "mean_abs", "update_norm", "weight_norm")


def frame_html(frame: Frame) -> str:
    """Return a frame as HTML: its scalars, then the worst tensors.

    Worst come those with elements that are not finite, then those without a gradient, with zeros only, and then those
    whose size (norm over the root of the number of elements) is farthest from the median of the step.

    Example:
        >>> "step 3" in frame_html(Frame(step=3, optimizer="SGD", loss=0.5))
        True
    """
    beside = escaped(frame.optimizer)
    if frame.skipped:
        reason = f": {escaped(frame.skip_reason)}" if frame.skip_reason else ""
        beside += f' · <b style="color:{BROKEN}">skipped{reason}</b>'
    elif frame.clipped:
        beside += " · clipped"
    scalars = [(key, getattr(frame, key)) for key in _SCALARS]
    shown = [(key, value) for key, value in scalars if value is not None and not (key == "clip_scale" and value == 1.0)]
    logged = [(escaped(str(key)[:60]), number(value)) for key, value in list(frame.logged.items())[:_LOGGED]]
    cells = [(key, number(value)) for key, value in shown] + logged
    parts = [heading(f"step {int(frame.step)}", beside)]
    if cells:
        parts.append(table([key for key, _ in cells], [[value for _, value in cells]], numbers_from=0))
    if len(frame.logged) > _LOGGED:
        parts.append(f'<div style="{FAINT}">and {len(frame.logged) - _LOGGED} more logged values</div>')
    if len(frame.tensors):
        parts.append(_tensors(frame.tensors))
    return box(*parts)


def _tensors(tensors: TensorTable) -> str:
    order = worst_first(tensors)[:_SHOWN]
    rows = []
    for at in order:
        state = _state(tensors, at)
        numbers = [_measured(tensors, column, at) for column in _COLUMNS]
        rows.append([name(tensors.names[at]), state, *numbers])
    rest = len(tensors) - len(order)
    more = f'<div style="{FAINT}">and {rest} more tensors</div>' if rest else ""
    return table(["tensor", "gradient", *_COLUMNS], rows, numbers_from=2) + more


def worst_first(tensors: TensorTable) -> list[int]:
    """Return the places of a table's tensors, those that stand out most first."""
    status = tensors.column("status")
    seen = status == SEEN
    norm = np.where(seen, tensors.column("norm"), np.nan).astype(np.float64)
    numel = np.maximum(np.nan_to_num(tensors.column("numel").astype(np.float64)), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log10(norm / np.sqrt(numel))
    finite = size[np.isfinite(size)]
    odd = np.nan_to_num(np.abs(size - (np.median(finite) if len(finite) else 0.0)), nan=0.0, posinf=0.0)
    rank = odd / (1.0 + odd)  # below 1, so that states come before sizes
    rank = np.where(seen & (norm == 0), 2.0, rank)
    rank = np.where((status == NONE) | (status == NOT_VISIBLE), 3.0, rank)
    rank = np.where(_broken(tensors) > 0, 4.0, rank)
    return [int(at) for at in np.argsort(-rank, kind="stable")]


def _broken(tensors: TensorTable) -> Array:
    counts: Array = np.nan_to_num(tensors.column("nan_count")) + np.nan_to_num(tensors.column("inf_count"))
    return counts


def _state(tensors: TensorTable, at: int) -> str:
    if tensors.column("status")[at] != SEEN:
        return STATUS_NAMES[int(tensors.column("status")[at])].replace("_", " ")
    broken = int(_broken(tensors)[at])
    if broken:
        return f'<b style="color:{BROKEN}">{broken} not finite</b>'
    return "zero" if tensors.column("norm")[at] == 0 else "finite"


def _measured(tensors: TensorTable, column: str, at: int) -> str:
    """Return a statistic; NaN in a table of a frame means that it was not measured."""
    of_gradient = column not in ("update_norm", "weight_norm")
    if of_gradient and (tensors.column("status")[at] != SEEN or _broken(tensors)[at]):
        return number(None)  # the record's moments are those of the finite elements only
    value = float(tensors.column(column)[at])
    return number(None if np.isnan(value) else value)
