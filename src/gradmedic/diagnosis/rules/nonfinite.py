"""GM201 nonfinite: the first NaN or infinity in loss or gradients, and where it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.guarded import guarded
from gradmedic.diagnosis.history import is_nonfinite
from gradmedic.diagnosis.suppression import DOMAIN_OPERATIONS
from gradmedic.diagnosis.view import View
from gradmedic.frame import Frame
from gradmedic.types import Severity

_CLASSES = ("data", "parameter", "forward", "loss", "backward", "elsewhere")
#: Classes in which the forward pass itself is non-finite, so that no loss scale can be the reason.
_BEFORE_BACKWARD = ("data", "parameter", "forward", "loss")


class NonFinite:
    """One finding per optimizer, for the first step that is non-finite for real.

    Steps that a loss scaler skips because scaled gradients overflowed are its way of working (GM204), and NaN that is
    masked out before it reaches loss or gradients (fully masked attention rows) is none of our business.
    """

    code = "GM201"
    name = "nonfinite"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._origins: dict[str, Mapping[str, Any]] = {}
        self._said: set[str] = set()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every frame until the first non-finite one."""
        for event in view.events:
            if event.get("kind") == "origin":
                self._origins.setdefault(str(event.get("optimizer") or view.frame.optimizer), event)
        optimizer = view.frame.optimizer
        if view.final or optimizer in self._said:
            return
        origin = self._origins.get(optimizer)
        if not is_nonfinite(view.frame) and not self._beyond_scaling(view, origin):
            if view.frame.skipped:
                self._origins.pop(optimizer, None)  # of an overflow that the scaler dealt with
            return
        self._said.add(optimizer)
        yield self._draft(view, origin)

    def _beyond_scaling(self, view: View, origin: Mapping[str, Any] | None) -> bool:
        """Whether a step that the loss scaler skipped was lost to something that no loss scale can mend.

        That is a forward pass that is itself non-finite, or an operation, seen in the graph, whose derivative is.
        """
        loss = view.frame.loss
        if origin is None or not view.frame.skipped:
            return False
        if origin.get("class") == "backward":
            return bool(origin.get("op"))
        return origin.get("class") in _BEFORE_BACKWARD and loss is not None and not math.isfinite(loss)

    def _draft(self, view: View, origin: Mapping[str, Any] | None) -> Draft:
        origin = origin or {}
        kind = str(origin.get("class", ""))
        variant = kind if kind in _CLASSES else self._guess(view)
        where = tuple(str(name) for name in origin.get("where", ())) or self._tensors(view)
        severity: Severity = "error" if view.frame.skipped else "critical"
        rows = tuple(str(row) for row in origin.get("rows", ()))
        loss = _loss(view, origin)
        clean = _spread_by_clip(view.frame)
        return Draft(
            severity=severity,
            confidence=0.95 if kind in _CLASSES else 0.8,
            step=int(origin.get("step", view.frame.step)),
            where=where,
            evidence=tuple(self._evidence(view, origin)),
            params={
                "op": str(origin.get("op") or ""),
                "by_op": "@by_op" if origin.get("op") else "",
                "rows": rows,
                "in_rows": ("@in_row" if len(rows) == 1 else "@in_rows") if rows else "",
                "at": "@at_where" if where else "",
                "on_rank": "" if origin.get("rank") is None else "@on_rank",
                "rank": origin.get("rank"),
                "sudden": "@sudden" if _is_sudden(view, str(origin.get("op") or "")) else "",
                "spread": "@spread_by_clip" if clean else "",
                "clean": clean,
                "guarded": guarded(view.frame),
                "loss": loss,
                "loss_is": "@loss_nonfinite" if loss is not None and not math.isfinite(loss) else "@loss_finite",
            },
            variant=variant,
        )

    def _guess(self, view: View) -> str:
        """Return the class when no probe has named it: a finite loss leaves only the backward pass."""
        loss = view.frame.loss
        return "backward" if loss is not None and math.isfinite(loss) else "unknown"

    def _tensors(self, view: View) -> tuple[str, ...]:
        """Return the tensors with non-finite gradients, the likeliest origin first.

        NaN spreads forward from its origin when the forward pass made it, and towards the first layer when the backward
        pass did: hence in execution order, or in reverse.
        """
        table = view.frame.tensors
        bad = (table.column("nan_count") > 0) | (table.column("inf_count") > 0)
        index = view.history.index
        order = view.layout.order
        names = [table.names[place] for place in np.flatnonzero(bad)]
        names.sort(key=lambda name: int(order[index[name]]) if index.get(name, len(order)) < len(order) else 0)
        return tuple(reversed(names)) if self._guess(view) == "backward" else tuple(names)

    def _evidence(self, view: View, origin: Mapping[str, Any]) -> Iterator[Evidence]:
        table = view.frame.tensors
        nan = origin.get("nan_count", _total(table.column("nan_count")))
        inf = origin.get("inf_count", _total(table.column("inf_count")))
        yield Evidence("NaN elements", int(nan), 0, "elements")
        yield Evidence("infinite elements", int(inf), 0, "elements")
        loss = _loss(view, origin)
        if loss is not None:
            yield Evidence("loss", loss)
        if origin.get("shape"):
            yield Evidence(
                "shape", " x ".join(str(size) for size in origin["shape"]), None, str(origin.get("dtype", ""))
            )


def _loss(view: View, origin: Mapping[str, Any]) -> float | None:
    """Return the loss of the step on the rank where it began, None where that is not known."""
    if origin.get("rank") is None:
        return view.frame.loss
    loss: float | None = origin.get("loss")
    return loss


def _spread_by_clip(frame: Frame) -> int:
    """Return how many tensors had finite gradients until the script's own clip multiplied them by NaN.

    torch's `clip_grad_norm_` multiplies by max_norm / norm, whatever the norm is; what gradmedic itself does to
    gradients never does. An infinite norm makes the factor 0, which spreads nothing.
    """
    of_script = frame.clip_threshold is not None and frame.transform_threshold is None and not frame.skipped
    if not of_script or frame.grad_norm is None or not math.isnan(frame.grad_norm) or not len(frame.tensors):
        return 0
    norms, bad = frame.tensors.column("norm"), frame.tensors.column("nan_count") + frame.tensors.column("inf_count")
    return int(np.count_nonzero((bad == 0) & np.isfinite(norms)))


def _total(column: np.ndarray) -> int:
    return int(np.nansum(column)) if len(column) else 0


def _is_sudden(view: View, op: str) -> bool:
    """Whether nothing announced it: at least five losses before this step, the last of them as large as the others.

    An operation outside its domain (log of a negative number) is a reason of its own.
    """
    if op in DOMAIN_OPERATIONS:
        return False
    losses = np.abs(view.window("loss", 21)[:-1])
    losses = losses[np.isfinite(losses)]
    return len(losses) >= 5 and bool(losses[-1] <= 3 * np.median(losses))
