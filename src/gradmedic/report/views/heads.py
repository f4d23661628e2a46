"""What attention heads do over the sampled steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmedic.record import Run
from gradmedic.record.arrays import as_floats, booleans, codes_of, to_numpy
from gradmedic.report.views.source import Floats, Integers, Source, source_of

#: Numbers of an attention row that are curves: the probe's name -> (what is shown, which line of it).
_LINES: dict[str, tuple[str, str]] = {
    "entropy": ("entropy", "mean"),
    "entropy_min": ("entropy", "min"),
    "max_logit": ("max_logit", "max"),
    "low_heads": ("low_heads", "share"),
}
_HEAD = re.compile(r"(entropy|max_logit|grad_norm|grad_mean)\.(\d+)")


@dataclass(frozen=True, slots=True)
class HeadSeries:
    """One number of the heads of one attention.

    Attributes:
        module: what holds the attention; with its call or place where it has several.
        what: "entropy" (over ln T, in [0, 1]), "max_logit", "low_heads" (share of heads that look at next to nothing),
            "grad_norm" or "grad_mean" (of the gradient that comes back to a head's output, unscaled).
        labels: one for each line [H]: the head's number, or "mean", "min", "max", "share" of all heads.
        steps: [S].
        values: [S, H]; NaN where not recorded, plus infinity where not finite.
    """

    module: str
    what: str
    labels: tuple[str, ...]
    steps: Integers
    values: Floats


def head_series(run: Run | Source) -> list[HeadSeries]:
    """Return the series of every attention that was sampled, by place and kind of number; empty without attention."""
    source = source_of(run)
    table = source.modules
    kinds, what = codes_of(table["what"])
    if "attention" not in what:
        return []
    rows = table.filter(booleans(kinds == what.index("attention"))).select(["step", "module", "call", "leaf", "extra"])
    held: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        held.setdefault(_place(row), []).append(row)
    if any(held_name[0] != "#" for held_name in held):
        # Before the model was known, the first step's rows carry no name.
        held = {name: entries for name, entries in held.items() if name[0] != "#"}
    scales = _loss_scales(source)
    return [series for name, entries in held.items() for series in _series(name, entries, scales)]


def _place(row: dict[str, Any]) -> str:
    parts = [row["module"] or "#"]
    if row["call"]:
        parts.append(f"call {row['call']}")
    if row["leaf"] not in ("", "0", None):
        parts.append(str(row["leaf"]))
    return " · ".join(parts)


def _series(name: str, entries: list[dict[str, Any]], scales: dict[int, float]) -> list[HeadSeries]:
    numbers = [dict(entry["extra"] or ()) for entry in entries]
    steps = np.array([entry["step"] for entry in entries], dtype=np.int64)
    lines: dict[str, dict[str, str]] = {}
    for key in dict.fromkeys(key for each in numbers for key in each):
        head = _HEAD.fullmatch(key)
        what, label = (head[1], head[2]) if head else _LINES.get(key, ("", ""))
        if what:
            lines.setdefault(what, {})[label] = key
    made = []
    for what, keys in lines.items():
        # Where single heads are recorded, what sums them up only repeats them.
        single = {label: key for label, key in keys.items() if label.isdecimal()}
        shown = dict(sorted(single.items(), key=lambda item: int(item[0]))) or keys
        number = _gradient if what.startswith("grad_") else _number
        values = np.array([[number(each.get(key)) for key in shown.values()] for each in numbers])
        if what.startswith("grad_"):
            values = values / np.array([[scales.get(step, 1.0)] for step in steps.tolist()])
        made.append(HeadSeries(name, what, tuple(shown), steps, values))
    return made


def _loss_scales(source: Source) -> dict[int, float]:
    """Return the loss scale by step, where there is one: what flows back through a model is scaled."""
    scales = as_floats(source.steps["loss_scale"])
    usable = np.flatnonzero(scales > 0)
    steps = to_numpy(source.steps["step"])[usable]
    return dict(zip(steps.tolist(), scales[usable].tolist(), strict=True))


def _gradient(value: float | None) -> float:
    return np.nan if value is None else value  # NaN: no backward pass has come by


def _number(value: float | None) -> float:
    if value is None:
        return np.nan
    return np.inf if value != value else value
