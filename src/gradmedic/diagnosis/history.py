"""What is remembered of one optimizer's steps: bounded rings of scalars and tensor columns, and exact counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.loss import LossTracker
from gradmedic.diagnosis.ring import Floats, Ring
from gradmedic.frame import NONE, NOT_VISIBLE, SEEN, Frame

SCALARS: tuple[str, ...] = (
    "step",
    "loss",
    "lr",
    "grad_norm",
    "grad_norm_post",
    "clip_scale",
    "clipped",
    "skipped",
    "nonfinite",
    "loss_scale",
    "stale_grads",
    "micro_batches",
)
#: Steps whose scalars, and steps whose tensor columns, are remembered.
SCALAR_STEPS = 512
TENSOR_STEPS = 64

Counts = npt.NDArray[np.int64]


class Counters:
    """Exact per-tensor counts over the whole run, each an array [P]."""

    __slots__ = ("none", "nonzero", "seen", "zero_run")

    def __init__(self, size: int) -> None:
        self.seen: Counts = np.zeros(size, dtype=np.int64)
        self.none: Counts = np.zeros(size, dtype=np.int64)
        self.nonzero: Counts = np.zeros(size, dtype=np.int64)
        self.zero_run: Counts = np.zeros(size, dtype=np.int64)

    def add(self, status: npt.NDArray[Any], norm: npt.NDArray[Any], *, finite: bool = True) -> None:
        """Count one step.

        Norms are over the finite elements: of a gradient that is NaN throughout it is 0. A step that is not `finite`
        therefore says of no tensor that its gradient is zero.
        """
        seen = status == SEEN
        moved = seen & (norm != 0)  # NaN counts as moved: it is not zero
        self.seen += seen
        self.none += status == NONE
        self.nonzero += moved
        if finite:
            self.zero_run += seen
        self.zero_run[moved] = 0

    def widened(self, places: Counts, size: int) -> Counters:
        """Return counters whose entry `places[i]` is this one's entry i."""
        wider = Counters(size)
        for name in self.__slots__:
            getattr(wider, name)[places] = getattr(self, name)
        return wider


class History:
    """Everything remembered of one optimizer.

    Scalars are kept for every step; of the rates of groups the highest. Tensor columns and counts are kept for
    steps that have a table, were not skipped, and had a backward pass: on the others nothing was learned.
    """

    def __init__(self, optimizer: str, columns: Iterable[str]) -> None:
        self.optimizer = optimizer
        self.columns = tuple(columns)
        self.scalars = Ring(SCALAR_STEPS, len(SCALARS))
        self.names: tuple[str, ...] = ()
        self.index: dict[str, int] = {}
        self.counters = Counters(0)
        self.tables = 0
        self.table_steps = Ring(TENSOR_STEPS, 1)
        self.steps = 0
        self.loss = LossTracker()
        self.nonfinite_step: int | None = None
        self.peak_lr = 0.0
        self.hidden_steps = 0
        self.empty_steps = 0
        self._tensors: dict[str, Ring] = {}

    def push(self, frame: Frame) -> bool:
        """Take one frame; returns whether its tensor table was taken."""
        self.steps += 1
        rate = leading_rate(frame)
        self.scalars.push([_float(rate if name == "lr" else getattr(frame, name)) for name in SCALARS])
        self.loss.update(frame.loss, frame.step)
        if rate is not None:
            self.peak_lr = max(self.peak_lr, rate)
        if self.nonfinite_step is None and is_nonfinite(frame):
            self.nonfinite_step = frame.step
        if frame.skipped or not len(frame.tensors):
            return False
        before = self.tables
        self._push_table(frame)
        return self.tables > before

    def _push_table(self, frame: Frame) -> None:
        table = frame.tensors
        if table.names != self.names:
            self._adopt(table.names)
        at = None if table.names == self.names else np.array([self.index[name] for name in table.names], dtype=np.int64)
        status = self._spread(table.column("status"), at, fill=-1)
        if (status == NOT_VISIBLE).any():
            self.hidden_steps += 1
        if not (status == SEEN).any():
            self.empty_steps += 1  # no gradient reached this optimizer: says nothing about single tensors
            return
        self.tables += 1
        self.table_steps.push([frame.step])
        norm = self._spread(table.column("norm"), at)
        self.counters.add(status, norm, finite=not is_nonfinite(frame) and not frame.nonfinite)
        for name, ring in self._tensors.items():
            values = norm if name == "norm" else self._spread(table.column(name), at)
            if name == "weight_norm" and len(former := ring.window(1)) and np.isnan(values).all():
                values = former[-1]  # measured every few steps only: weights change slowly
            ring.push(values)

    def _spread(self, values: npt.NDArray[Any], at: Counts | None, fill: float = math.nan) -> npt.NDArray[Any]:
        """Return a frame's column in this history's order; `fill` for tensors that the frame lacks."""
        if at is None:
            return values
        spread = np.full(len(self.names), fill)
        spread[at] = values
        return spread

    def _adopt(self, names: tuple[str, ...]) -> None:
        """Make room for tensors that were not there before (late unfreezing, added groups)."""
        fresh = tuple(name for name in names if name not in self.index)
        if not fresh and self.names:
            return
        places = np.arange(len(self.names), dtype=np.int64)
        self.names += fresh
        self.index = {name: place for place, name in enumerate(self.names)}
        size = len(self.names)
        self.counters = self.counters.widened(places, size)
        for name in self.columns:
            old = self._tensors.get(name)
            self._tensors[name] = Ring(TENSOR_STEPS, size) if old is None else old.widened(places, size)

    def window(self, column: str, n: int) -> Floats:
        """Return a scalar column over the last `n` steps [<=n], oldest first; NaN where it was None."""
        return self.scalars.window(n)[:, SCALARS.index(column)]

    def tensor_window(self, column: str, n: int) -> Floats:
        """Return a tensor column over the last `n` steps that had one: a view [<=n, P], oldest first."""
        ring = self._tensors.get(column)
        return np.empty((0, len(self.names))) if ring is None else ring.window(n)


def leading_rate(frame: Frame) -> float | None:
    """Return the highest learning rate of a step's parameter groups; that of the first one where no other is known."""
    if len(frame.lrs) < 2:
        return frame.lr
    return max((rate for rate in frame.lrs if math.isfinite(rate)), default=frame.lr)


def is_nonfinite(frame: Frame) -> bool:
    """Whether a step's loss or gradients are non-finite for real: not a loss scaler's skipped overflow."""
    bad_loss = frame.loss is not None and not math.isfinite(frame.loss)
    bad_grads = frame.nonfinite > 0 or (frame.grad_norm is not None and not math.isfinite(frame.grad_norm))
    if frame.skipped and frame.loss_scale is not None:
        # loss = scaled loss / scale: an overflow of the scaled loss shows as inf here, never as NaN.
        return frame.loss is not None and math.isnan(frame.loss)
    return bad_loss or bad_grads


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
