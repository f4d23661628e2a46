"""Where non-finite gradients came from, told from a step's table where the loss did not tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradmedic.frame import Frame

_MAX_NAMES = 8


def origin_from_gradients(frame: Frame, order: Mapping[str, int | None], *, shared: bool = False) -> dict[str, Any]:
    """Return the event of kind "origin" for a step with non-finite gradients.

    The backward pass runs from the loss to the input, so a value that is lost in it spoils the gradients of what lies
    before that place in forward order, and none behind it: the last spoilt tensor in forward order names the place.

    Args:
        frame: the step, with its table.
        order: place of each tensor in forward order, None where unknown.
        shared: whether other ranks have added to these gradients: what is finite here up to the loss may then have come
            from one of them, unless this rank's own gradients were measured and are not.
    """
    table = frame.tensors
    if not len(table):
        return _event("unknown", [], 0, 0, "the step's per-tensor table was not measured")
    weights = table.column("weight_norm")
    sick = [name for name, value in zip(table.names, weights, strict=True) if not np.isfinite(value)]
    nans, infs = np.nan_to_num(table.column("nan_count")), np.nan_to_num(table.column("inf_count"))
    if "weight_norm" in table.columns and sick:
        return _event("parameter", sick[:_MAX_NAMES], nans.sum(), infs.sum(), "the weights themselves are not finite")
    own = np.nan_to_num(table.column("local_nonfinite"))
    lost = own if own.any() else nans + infs
    spoilt = [name for name, count in zip(table.names, lost, strict=True) if count > 0]
    spoilt.sort(key=lambda name: _place(order.get(name)))
    kind = "backward" if frame.loss is not None and math.isfinite(frame.loss) else "unknown"
    if shared and kind == "backward" and not own.any():
        kind = "elsewhere"
    clean = len(table) - len(spoilt)
    detail = f"{len(spoilt)} gradients are not finite, {clean} are"
    return _event(kind, spoilt[::-1][:_MAX_NAMES], nans.sum(), infs.sum(), detail)


def _place(order: int | None) -> int:
    return -1 if order is None else order


def _event(kind: str, where: list[str], nans: float, infs: float, detail: str) -> dict[str, Any]:
    return {
        "kind": "origin",
        "class": kind,
        "where": where,
        "op": None,
        "rows": [],
        "shape": [],
        "dtype": "",
        "nan_count": int(nans),
        "inf_count": int(infs),
        "detail": detail,
    }
