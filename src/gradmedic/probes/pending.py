"""Frames whose numbers may still lie on a device.

A step hands over tensors, never numbers: everything that one or many steps have left is put into one parcel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradmedic.clip.base import Reason
from gradmedic.clip.factors import BAD_FACTORS
from gradmedic.frame import NONE, SEEN, Frame, TensorTable
from gradmedic.host_copies import Floats, HostCopies
from gradmedic.probes.gradients import Clip, Reading
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.parcel import Parcel
from gradmedic.types import COUNT_COLUMNS, MOMENT_COLUMNS

_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass(slots=True)
class ClipCount:
    """Running clip frequency of one optimizer, kept in the order of its steps."""

    steps: int = 0
    clipped: int = 0

    def add(self, clipped: bool) -> float:
        """Count a step and return the share that was clipped."""
        self.steps += 1
        self.clipped += clipped
        return self.clipped / self.steps


@dataclass(slots=True)
class PendingFrame:
    """One step as the device left it.

    Attributes:
        frame: what is known on the host already.
        names: all tensors of the optimizer, N.
        readings: measurements, each with the positions of its tensors among the names.
        vectors: further per-tensor columns: name -> (values, positions).
        loss, loss_scale, found_inf: 0-d tensors.
        logged: the user's own numbers that lie on a device.
        full: whether the per-tensor table was measured, and not norms only.
        keep: whether it belongs to the record (otherwise only the flight recorder holds it).
        skips: why the step may have been skipped by a transform.
        modules: what was measured of modules.
        engine: who keeps the gradients, where none of them can be seen; None: nobody.
        known_norm: their joint norm as the engine tells it.
        joint: totals, where other ranks hold a part of the model; see `gradmedic.probes.joint`.
    """

    frame: Frame
    names: tuple[str, ...]
    readings: list[tuple[Reading, list[int]]]
    clip_count: ClipCount
    vectors: dict[str, tuple[torch.Tensor, list[int]]] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    loss_scale: torch.Tensor | None = None
    found_inf: torch.Tensor | None = None
    full: bool = True
    keep: bool = True
    hidden: list[int] = field(default_factory=list)
    logged: dict[str, torch.Tensor] = field(default_factory=dict)
    modules: list[ModuleSample] = field(default_factory=list)
    skips: tuple[Reason, ...] = ()
    joint: torch.Tensor | None = None
    engine: str | None = None
    known_norm: float | None = None
    skip_reason_if_found_inf: str = "non-finite gradients under the loss scale"

    def log(self, given: Mapping[str, torch.Tensor | float]) -> None:
        """Add what the user has logged for the step."""
        for key, value in given.items():
            if key == "loss":
                self.loss = torch.as_tensor(value, dtype=torch.float64)
            elif isinstance(value, torch.Tensor):
                self.logged[key] = value
            else:
                self.logged.pop(key, None)
                self.frame.logged = {**self.frame.logged, key: value}

    def pack(self, parcel: Parcel) -> Callable[[], Frame]:
        """Put everything into the parcel; the function returned finishes the frame once it is sent."""
        scalars = [parcel.add(value) for value in (self.loss, self.loss_scale, self.found_inf)]
        readings = [_pack_reading(reading, positions, parcel) for reading, positions in self.readings]
        logged = {name: parcel.add(value) for name, value in self.logged.items()}
        vectors = {name: (parcel.add(values), at) for name, (values, at) in self.vectors.items()}
        modules = [sample.pack(parcel.add, parcel.get) for sample in self.modules]
        skips = [(parcel.add(reason.flag), reason.text) for reason in self.skips]
        joint = parcel.add(self.joint)

        def finish() -> Frame:
            loss, scale, found = (parcel.number(place) for place in scalars)
            self.frame.loss = loss if loss is not None else self.frame.loss
            self.frame.loss_scale = scale if scale is not None else self.frame.loss_scale
            extra = {name: number for name, place in logged.items() if (number := parcel.number(place)) is not None}
            none_bad = [name for name, number in extra.items() if name.startswith(BAD_FACTORS) and not number]
            self.frame.logged = {**self.frame.logged, **{n: extra[n] for n in extra if n not in none_bad}}
            if found:
                self.frame.skipped, self.frame.skip_reason = True, self.skip_reason_if_found_inf
            for place, text in skips:
                if parcel.number(place) and not self.frame.skipped:
                    self.frame.skipped, self.frame.skip_reason = True, text
            table = _Table(len(self.names))
            for unpack in readings:
                unpack(table)
            for name, (place, at) in vectors.items():
                table.put(name, _where(at, table.size), parcel.get(place))
            table.finish(self.frame, self.clip_count, parcel.get(joint))
            if self.frame.grad_norm is None:
                self.frame.grad_norm = self.known_norm
            self.frame.modules = tuple(row() for row in modules)
            self.frame.tensors = table.as_tensors(self.names, self.hidden, self.full)
            return self.frame

        return finish


def resolve(pending: Sequence[PendingFrame]) -> list[Frame]:
    """Bring frames to the host, all in one copy, and wait for it."""
    parcel = Parcel()
    finishers = [each.pack(parcel) for each in pending]
    parcel.send(HostCopies())
    parcel.open()
    return [finish() for finish in finishers]


class _Table:
    """Per-tensor columns under construction."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.columns: dict[str, Floats] = {}
        self.histogram: npt.NDArray[np.int64] | None = None
        self.scale = np.ones(size)
        self.own = np.ones(size)
        self.treated = False
        self.own_threshold: float | None = None
        self.seen = np.zeros(size, dtype=bool)
        self.clipped = False
        self.threshold: float | None = None
        self.post: dict[int, float] = {}

    def put(self, name: str, positions: list[int] | slice, values: Floats | None) -> None:
        if values is None:
            return
        if isinstance(positions, slice) and name not in self.columns:
            self.columns[name] = values
            return
        column = self.columns.setdefault(name, np.full(self.size, np.nan))
        column[positions] = values

    def get(self, name: str) -> Floats:
        return self.columns.get(name, np.full(self.size, np.nan))

    def _sum(self, name: str) -> float:
        """Sum of a column over the tensors for which it was measured."""
        values = self.columns.get(name)
        if values is None:
            return 0.0
        total = float(values.sum())
        return float(np.nansum(values)) if np.isnan(total) else total

    def finish(self, frame: Frame, count: ClipCount, joint: Floats | None = None) -> None:
        """Put the totals into the frame: of what is here, or, where they are given, of all ranks together."""
        if self.seen.any() if joint is None else joint[5] > 0:
            before = self.get("norm")
            nans, infs = (self._sum(name) for name in ("nan_count", "inf_count"))
            if joint is not None:
                nans, infs = float(joint[3]), float(joint[4])
            frame.nonfinite = int(nans + infs)
            frame.grad_norm = _of_all(joint, 0, before[self.seen], nans, infs)
            after = _product(before, self.scale)
            for position, value in self.post.items():
                after[position] = value
                self.scale[position] = float(value) / float(before[position]) if before[position] > 0 else 1.0
            poisoned = bool(nans + infs) and bool(self.post or (self.scale != 1).any() or np.isnan(self.scale).any())
            frame.grad_norm_post = float("nan") if poisoned else _of_all(joint, 1, after[self.seen], nans, infs)
            if frame.grad_norm > 0 and np.isfinite(frame.grad_norm):
                frame.clip_scale = float(frame.grad_norm_post) / float(frame.grad_norm)
            frame.clipped = self.clipped
            frame.clip_threshold = self.threshold
            if self.treated:
                kept = _of_all(joint, 2, _product(before, self.own)[self.seen], 0, 0)
                whole = _of_all(joint, 0, before[self.seen], 0, 0)
                frame.transform_scale = kept / whole if whole > 0 else 1.0
                frame.transform_threshold = self.own_threshold
            if "norm" in self.columns and not np.isfinite(frame.grad_norm) and not frame.nonfinite:
                frame.nonfinite = 1  # norms only: at least one element, nobody has counted
        frame.clip_frequency = count.add(frame.clipped)

    def as_tensors(self, names: tuple[str, ...], hidden: list[int], full: bool) -> TensorTable:
        if not full:
            return TensorTable()
        status = np.where(self.seen, SEEN, NONE).astype(np.int64)
        status[hidden] = 2
        columns: dict[str, Any] = dict(self.columns)
        columns["clip_scale"] = np.where(self.seen, self.scale, np.nan)
        columns["status"] = status
        return TensorTable(names, columns, self.histogram)


def _pack_reading(reading: Reading, positions: list[int], parcel: Parcel) -> Callable[[_Table], None]:
    table = reading.table
    moments, tallies = (-1, -1) if table is None else (parcel.add(table.moments), parcel.add(table.counts))
    histogram = -1 if table is None else parcel.add(table.log2_hist)
    vector, presence = parcel.add(reading.norms), parcel.add(reading.present)
    totals = [
        (
            clip,
            [parcel.add(x) for x in (clip.total_norm, clip.scale, clip.clipped, clip.threshold, clip.withheld)],
        )
        for clip in reading.clips
    ]
    changed = reading.remeasured
    post = -1 if changed is None else parcel.add(changed[1])

    def unpack(into: _Table) -> None:
        everywhere = _where(positions, into.size)
        there = parcel.get(presence)
        into.seen[everywhere] = True if there is None else there > 0
        for names, place in ((MOMENT_COLUMNS, moments), (COUNT_COLUMNS, tallies)):
            rows = parcel.get(place)
            for at, name in enumerate(names if rows is not None else ()):
                into.put(name, everywhere, None if rows is None else rows[at])
        into.put("norm", everywhere, parcel.get(vector))
        counts = parcel.get(histogram)
        if counts is not None:
            if into.histogram is None:
                into.histogram = np.zeros((into.size, counts.shape[1]), dtype=np.int64)
            into.histogram[positions] = counts.astype(np.int64)
        for clip, (total, scale, flag, threshold, withheld) in totals:
            if parcel.number(withheld):
                continue
            where = positions if clip.positions is None else [positions[at] for at in clip.positions]
            factors = parcel.get(scale)
            if factors is not None:
                _apply_own(into, where, factors, parcel.number(flag), parcel.number(threshold))
            else:
                _apply_clip(into, clip, where, parcel.number(total))
        values = parcel.get(post)
        if values is not None and changed is not None:
            into.post.update({positions[at]: float(value) for at, value in zip(changed[0], values, strict=True)})

    return unpack


def _where(positions: list[int], size: int) -> list[int] | slice:
    """Return the positions for indexing; a slice, which costs no copy, when they are everything in order."""
    return slice(None) if len(positions) == size and positions == list(range(size)) else positions


def _apply_own(into: _Table, where: list[int], factors: Floats, flag: float | None, threshold: float | None) -> None:
    """Note what a transform of ours did."""
    into.scale[where] *= factors
    into.own[where] *= factors
    into.treated = True
    into.clipped |= bool(flag)
    if threshold is not None and np.isfinite(threshold):
        into.own_threshold = into.threshold = threshold


def _apply_clip(into: _Table, clip: Clip, where: list[int], total: float | None) -> None:
    if total is not None and clip.max_norm is not None:
        factor = clip.max_norm / (total + _CLIP_EPSILON)
        into.scale[where] *= 1.0 if factor > 1.0 else factor
        into.clipped |= total > clip.max_norm
        if np.isfinite(clip.max_norm):  # with an infinite one a clip function only measures
            into.threshold = clip.max_norm
    elif clip.clip_value is not None:
        largest, infinite = into.get("max_abs")[where], into.get("inf_count")[where]
        into.clipped |= bool(np.any(largest > clip.clip_value) or np.nansum(infinite) > 0)


def _product(norms: Floats, factors: Floats) -> Floats:
    """Return norms times factors, which may be anything where the script clips by itself: 0 times infinity is NaN."""
    undefined = ((norms == 0) & np.isinf(factors)) | (np.isinf(norms) & (factors == 0))
    product = np.full(norms.shape, np.nan)
    with np.errstate(over="ignore"):  # beyond float64 the product is infinite, as the gradients are
        np.multiply(norms, factors, out=product, where=~undefined)
    return product


def _of_all(joint: Floats | None, at: int, values: Floats, nans: float, infs: float) -> float:
    """Return the joint norm of all ranks' tensors, from their sum of squares, or of those that are here."""
    return _total(values if joint is None else np.sqrt(joint[at : at + 1]), nans, infs)


def _total(values: Floats, nans: float, infs: float) -> float:
    """L2 norm of norms, scaled so that the squares of float64 extremes neither overflow nor vanish."""
    if nans:
        return float("nan")
    if infs:
        return float("inf")
    largest = float(values.max()) if values.size else 0.0
    if not np.isfinite(largest) or np.isnan(values).any():
        return float("nan") if np.isnan(values).any() else float("inf")
    if largest == 0.0:
        return 0.0
    return largest * float(np.sqrt(np.square(values / largest).sum()))
