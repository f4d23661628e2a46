"""A run in a dozen numbers: how long, how large, where the loss went, what the gradients did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gradmedic.frame import Frame


@dataclass(slots=True)
class RunSummary:
    """Numbers of one run; None where nothing is known.

    Attributes:
        steps: of all optimizers; `optimizers` those of each.
        seconds: from the first to the last step.
        tensors, parameters: trainable ones, and their elements.
        loss_first, loss_last: of the first optimizer that has one.
        lr_first, lr_last, norms: learning rate and pre-clip norm of the main optimizer; `norms` are the medians of the
            early, middle and late third.
        clipped, skipped: numbers of steps.
        overhead: share of the time between steps that gradmedic itself took.
    """

    steps: int = 0
    optimizers: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    tensors: int | None = None
    parameters: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    lr_first: float | None = None
    lr_last: float | None = None
    norms: tuple[float, ...] = ()
    clipped: int = 0
    skipped: int = 0
    overhead: float | None = None


def summarize(run: Any) -> RunSummary:
    """Return the summary of anything with `meta`, `events` and `frames()`."""
    by_optimizer: dict[str, list[Frame]] = {}
    first: Frame | None = None
    last: Frame | None = None
    spent = waited = 0.0
    for frame in run.frames():
        # Tables are let go at once: a long run has thousands of them.
        by_optimizer.setdefault(frame.optimizer, []).append(_scalars(frame))
        first, last = first or frame, frame
        spent += frame.overhead_seconds if frame.step_seconds else 0.0
        waited += frame.step_seconds or 0.0
    summary = RunSummary()
    _add_sizes(summary, run)
    if first is None or last is None:
        return summary
    every = [frame for made in by_optimizer.values() for frame in made]
    summary.steps = len(every)
    summary.optimizers = {name: len(made) for name, made in by_optimizer.items()}
    summary.seconds = max(0.0, last.time - first.time)
    summary.clipped = sum(frame.clipped for frame in every)
    summary.skipped = sum(frame.skipped for frame in every)
    summary.overhead = spent / waited if waited > 0 else None
    _add_series(summary, list(by_optimizer.values()))
    return summary


def _scalars(frame: Frame) -> Frame:
    return Frame(
        step=frame.step,
        optimizer=frame.optimizer,
        time=frame.time,
        loss=frame.loss,
        lr=frame.lr,
        grad_norm=frame.grad_norm,
        clipped=frame.clipped,
        skipped=frame.skipped,
    )


def _add_series(summary: RunSummary, runs: list[list[Frame]]) -> None:
    losses = next((found for made in runs if (found := [f.loss for f in made if f.loss is not None])), [])
    if losses:
        summary.loss_first, summary.loss_last = losses[0], losses[-1]
    main = max(runs, key=len)
    rates = [frame.lr for frame in main if frame.lr is not None]
    if rates:
        summary.lr_first, summary.lr_last = rates[0], rates[-1]
    norms = [frame.grad_norm for frame in main if frame.grad_norm is not None]
    if len(norms) >= 3:
        third = len(norms) // 3
        summary.norms = tuple(_median(part) for part in (norms[:third], norms[third : 2 * third], norms[2 * third :]))
    else:
        summary.norms = tuple(norms)


def _median(values: list[float]) -> float:
    """Return the median; NaN when any value is, so that a broken third shows."""
    return math.nan if any(math.isnan(value) for value in values) else median(values)


def _add_sizes(summary: RunSummary, run: Any) -> None:
    facts: Mapping[str, Any] | None = None
    for event in run.events:
        if event.get("kind") == "facts":
            facts = event["facts"]
    if not facts or not facts.get("parameters"):
        return
    trainable = [entry for entry in facts["parameters"].values() if entry.get("trainable", True)]
    summary.tensors = len(trainable)
    summary.parameters = sum(int(entry.get("numel", 0)) for entry in trainable)
