"""The norms of a run by optimizer, as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gradmedic.frame import NONE, SEEN, Array, Frame


@dataclass(frozen=True)
class NormSeries:
    """All recorded steps of one optimizer, S, in the order of time.

    Attributes:
        optimizer: its name.
        step, norm, lr, loss, scale, threshold: indices; pre-clip norm of the whole, learning rate, loss, the run's own
            clip factor and threshold; float64, NaN where not known.
        known: whether there was a norm (NaN is one).
        skipped: whether the weights were left alone.
        nonfinite: number of NaN and infinite elements; at least 1 where the norm is not finite.
        names: of the tensors, P.
        row: place of a step's table among the T tables, -1 without one.
        tensors, sick, seen: norms over finite elements, numbers of others, whether there was a gradient; [T, P].
    """

    optimizer: str
    step: Array
    norm: Array
    lr: Array
    loss: Array
    scale: Array
    threshold: Array
    known: Array
    skipped: Array
    nonfinite: Array
    names: tuple[str, ...] = ()
    row: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    tensors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    sick: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    seen: Array = field(default_factory=lambda: np.zeros((0, 0), bool))

    def __len__(self) -> int:
        return len(self.step)

    @property
    def usable(self) -> Array:
        """Which steps were made with a gradient that is finite and not zero, bool [S]."""
        above = np.isfinite(self.norm) & (np.nan_to_num(self.norm) > 0)
        usable: Array = self.known & ~self.skipped & above & (self.nonfinite == 0)
        return usable

    def between(self, start: int, stop: int) -> NormSeries:
        """Return the steps at places start to stop - 1."""
        chosen = slice(start, stop)
        names = ("step", "norm", "lr", "loss", "scale", "threshold", "known", "skipped", "nonfinite")
        parts = {name: getattr(self, name)[chosen] for name in names}
        row = self.row[chosen]
        kept = row[row >= 0]
        row = np.where(row >= 0, row - (kept[0] if len(kept) else 0), -1)
        rows = slice(kept[0], kept[-1] + 1) if len(kept) else slice(0, 0)
        tables = {"tensors": self.tensors[rows], "sick": self.sick[rows], "seen": self.seen[rows]}
        return NormSeries(self.optimizer, **parts, names=self.names, row=row, **tables)


class _Collector:
    """Gathers one optimizer's frames; tables are let go at once."""

    def __init__(self, optimizer: str) -> None:
        self.optimizer = optimizer
        self.scalars: list[tuple[float, ...]] = []
        self.columns: dict[str, int] = {}
        self.tables: list[tuple[Array, Array, Array, Array]] = []

    def add(self, frame: Frame) -> None:
        known = frame.grad_norm is not None
        norm = _float(frame.grad_norm)
        sick = max(frame.nonfinite or 0, int(known and not math.isfinite(norm)))
        row = self._table(frame)
        self.scalars.append(
            (
                *(frame.step, norm, _float(frame.lr), _float(frame.loss), _float(frame.clip_scale)),
                *(_float(_threshold(frame)), known, bool(frame.skipped), sick, row),
            )
        )

    def _table(self, frame: Frame) -> int:
        table = frame.tensors
        if not table.names or "norm" not in table.columns:
            return -1
        status = table.column("status")
        if not (status == SEEN).any() or not ((status == SEEN) | (status == NONE)).all():
            return -1
        places = np.array([self.columns.setdefault(name, len(self.columns)) for name in table.names])
        norm = np.nan_to_num(np.asarray(table.column("norm"), np.float64), nan=0.0)
        sick = np.nan_to_num(table.column("nan_count")) + np.nan_to_num(table.column("inf_count"))
        self.tables.append((places, np.where(status == SEEN, norm, 0.0), sick.astype(np.int64), status == SEEN))
        return len(self.tables) - 1

    def series(self) -> NormSeries:
        step, norm, lr, loss, scale, threshold, known, skipped, sick, row = np.array(self.scalars, np.float64).T
        shape = (len(self.tables), len(self.columns))
        tensors, counts, seen = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, bool)
        for at, (places, norms, nonfinite, there) in enumerate(self.tables):
            tensors[at, places], counts[at, places], seen[at, places] = norms, nonfinite, there
        whole = {"step": step, "nonfinite": sick, "row": row}
        flags = {"known": known, "skipped": skipped}
        parts: dict[str, Array] = {
            **{name: column.astype(np.int64) for name, column in whole.items()},
            **{name: column > 0 for name, column in flags.items()},
            **dict(zip(("norm", "lr", "loss", "scale", "threshold"), (norm, lr, loss, scale, threshold), strict=True)),
            **dict(zip(("tensors", "sick", "seen"), (tensors, counts, seen), strict=True)),
        }
        return NormSeries(self.optimizer, names=tuple(self.columns), **parts)


def collect(frames: Iterable[Frame]) -> list[NormSeries]:
    """Return the norms of a run's frames, one series for each optimizer in the order of first appearance."""
    collectors: dict[str, _Collector] = {}
    for frame in frames:
        if frame.optimizer not in collectors:
            collectors[frame.optimizer] = _Collector(frame.optimizer)
        collectors[frame.optimizer].add(frame)
    return [collector.series() for collector in collectors.values()]


def _threshold(frame: Frame) -> float | None:
    return frame.clip_threshold if frame.clip_threshold is not None else frame.transform_threshold


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)
