"""Gradients of recurrent nets by time step, out of the module table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmedic.record.arrays import Array, as_floats, booleans, codes_of, to_numpy
from gradmedic.report.views import Source

#: Points of the time axis in a row, see `gradmedic.probes.recurrent`.
_POINTS = 9


@dataclass(frozen=True, slots=True)
class Course:
    """The gradient of one recurrent weight along the time axis.

    Attributes:
        name: of the weight.
        steps: sampled optimizer steps [S].
        times: time steps that were measured [9], from 0.
        values: L2 norms [S, 9], unscaled; NaN where no backward pass has come by, plus infinity where not finite.
    """

    name: str
    steps: Array
    times: Array
    values: Array


def courses(source: Source) -> list[Course]:
    """Return the courses of all recurrent weights.

    Of sequences of several lengths only those of the most frequent one are taken: their time steps are the same.
    """
    kinds, what = codes_of(source.modules["what"])
    if "recurrent" not in what:
        return []
    rows = source.modules.filter(booleans(kinds == what.index("recurrent")))
    held: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for row in rows.select(["step", "module", "leaf", "extra"]).to_pylist():
        name = ".".join(part for part in (row["module"], row["leaf"]) if part)
        held.setdefault(name, []).append((row["step"], dict(row["extra"] or ())))
    if any(held):  # before the model was known, the first step's rows carry no name
        held.pop("", None)
    scales = _loss_scales(source)
    return [_course(name, entries, scales) for name, entries in held.items()]


def _course(name: str, entries: list[tuple[int, dict[str, Any]]], scales: dict[int, float]) -> Course:
    length, _ = Counter(numbers.get("steps", 0.0) for _, numbers in entries).most_common(1)[0]
    same = [(step, numbers) for step, numbers in entries if numbers.get("steps", 0.0) == length]
    steps = np.array([step for step, _ in same], dtype=np.int64)
    values = np.array(
        [[_number(numbers.get(f"time_{point}")) for point in range(_POINTS)] for _, numbers in same], dtype=np.float64
    )
    came_by = ~np.isnan(values).all(axis=1, keepdims=True)
    values[came_by & np.isnan(values)] = np.inf  # the backward pass was there: what it brought was no number
    values /= np.array([[scales.get(step, 1.0)] for step in steps.tolist()])
    times = np.array([round(point * (max(length, 1) - 1) / (_POINTS - 1)) for point in range(_POINTS)])
    return Course(name, steps, times, values)


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _loss_scales(source: Source) -> dict[int, float]:
    """Return the loss scale by step, where there is one: what flows back through a model is scaled."""
    scales = as_floats(source.steps["loss_scale"])
    usable = np.flatnonzero(scales > 0)
    return dict(zip(to_numpy(source.steps["step"])[usable].tolist(), scales[usable].tolist(), strict=True))
