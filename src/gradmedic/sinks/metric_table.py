"""The one table of metrics: Prometheus, OpenTelemetry, W&B, MLflow and the dashboard take their names from it.

Names follow Prometheus' rules: base units, `_total` for what only grows, `_ratio` for shares, few values a label.
A value that is not known is left out, never 0; NaN and infinity are values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gradmedic.frame import Frame

PREFIX = "gradmedic"
Kind = Literal["gauge", "counter", "info"]
#: Values of the labels after the optimizer, and the number.
Reading = tuple[tuple[str, ...], float]
_MOST_GROUPS = 16
_MOST_LOGGED = 32


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as in Prometheus, without prefix and without the ending `_total` or `_info`.
        kind: "gauge" is a number of the last step, "counter" one that only grows, "info" is the constant 1.
        labels: what tells its series apart. Metrics of a step begin with `optimizer`.
        help: one sentence.
        unit: "seconds", "ratio", or "" where there is none.
        read: returns the values at a step: (labels after `optimizer`, number); what a counter grows by. None where
            it does not come from a frame.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: str = ""
    read: Callable[[Frame], Iterable[Reading]] | None = None

    @property
    def full_name(self) -> str:
        """The name under which Prometheus has it."""
        ending = {"gauge": "", "counter": "_total", "info": "_info"}[self.kind]
        return f"{PREFIX}_{self.name}{ending}"


def _one(value: float | int | bool | None) -> Iterator[Reading]:
    if value is not None:
        yield (), float(value)


def _count(condition: bool) -> Iterator[Reading]:
    # 0 as well: Prometheus sees no growth in a series that begins with its first event.
    yield (), float(condition)


def _skipped(frame: Frame) -> Iterator[Reading]:
    if frame.skipped:
        yield (reason_label(frame.skip_reason),), 1.0


def _norms(frame: Frame) -> Iterator[Reading]:
    for phase, value in (("pre_clip", frame.grad_norm), ("post_clip", frame.grad_norm_post)):
        if value is not None:
            yield (phase,), float(value)


def _rates(frame: Frame) -> Iterator[Reading]:
    rates = frame.lrs or (() if frame.lr is None else (frame.lr,))
    for group, rate in enumerate(rates[:_MOST_GROUPS]):
        yield (str(group),), float(rate)


def _logged(frame: Frame) -> Iterator[Reading]:
    for key, value in list(frame.logged.items())[:_MOST_LOGGED]:
        yield (key,), float(value)


def reason_label(reason: str | None) -> str:
    """Return a reason for a skipped step without its numbers, so that it may be a label."""
    return re.split(r"[\d(:;,]", reason or "")[0].strip()[:60] or "unknown"


def _gauge(name: str, text: str, read: Callable[[Frame], Any], *labels: str, unit: str = "") -> Metric:
    return Metric(name, "gauge", ("optimizer", *labels), text, unit, read)


def _counter(name: str, text: str, read: Callable[[Frame], Any], *labels: str, unit: str = "") -> Metric:
    return Metric(name, "counter", ("optimizer", *labels), text, unit, read)


METRICS: tuple[Metric, ...] = (
    _gauge(
        "grad_norm",
        "L2 norm of all gradients, unscaled, accumulated and reduced over ranks, before and after clipping.",
        _norms,
        "phase",
    ),
    _gauge("clip_scale", "Joint factor of all clipping, 1 without any.", lambda frame: _one(frame.clip_scale)),
    _gauge("clip_threshold", "Threshold of clipping by norm.", lambda frame: _one(frame.clip_threshold)),
    _gauge(
        "clip_ratio",
        "Share of the steps so far that were clipped.",
        lambda frame: _one(frame.clip_frequency),
        unit="ratio",
    ),
    _gauge("loss", "Loss of the step, in true units.", lambda frame: _one(frame.loss)),
    _gauge("learning_rate", "Learning rate of each parameter group.", _rates, "group"),
    _gauge("loss_scale", "Scale of the loss under mixed precision.", lambda frame: _one(frame.loss_scale)),
    _gauge("nonfinite_elements", "NaN and infinite gradient elements.", lambda frame: _one(frame.nonfinite)),
    _gauge("micro_batches", "Backward passes since the step before.", lambda frame: _one(frame.micro_batches)),
    _gauge(
        "step_duration_seconds",
        "Wall time of the step.",
        lambda frame: _one(frame.step_seconds),
        unit="seconds",
    ),
    _gauge("last_step", "Index of the last step, from 0.", lambda frame: _one(frame.step)),
    _gauge(
        "last_step_timestamp_seconds",
        "Unix time of the end of the last step.",
        lambda frame: _one(frame.time),
        unit="seconds",
    ),
    _gauge("logged", "What the script passes to monitor.log.", _logged, "key"),
    _counter("steps", "Optimizer steps, skipped ones included.", lambda frame: _count(True)),
    _counter(
        "steps_skipped",
        "Steps that left the weights alone.",
        _skipped,
        "reason",
    ),
    _counter("steps_clipped", "Steps whose gradients were clipped.", lambda frame: _count(frame.clipped)),
    _counter("nonfinite_steps", "Steps with a NaN or infinite gradient.", lambda frame: _count(frame.nonfinite > 0)),
    _counter(
        "overhead_seconds",
        "Time that watching itself took.",
        lambda frame: _one(frame.overhead_seconds),
        unit="seconds",
    ),
)

FINDINGS = Metric("findings", "counter", ("rule", "severity"), "Findings, by rule and severity.")
RUN = Metric("run", "info", ("run", "host", "rank", "version"), "What runs where.")
LAYER_GRAD_NORM = Metric(
    "layer_grad_norm",
    "gauge",
    ("optimizer", "layer"),
    "L2 norm of one parameter's gradient before clipping, NaN where an element is not finite; layer is the name of the "
    "parameter, such as encoder.0.weight. Prometheus gets the largest only.",
)

ALL: tuple[Metric, ...] = (*METRICS, FINDINGS, LAYER_GRAD_NORM, RUN)


def readings(frame: Frame, kind: Kind) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
    """Yield (metric, labels after the optimizer, number) for all of a kind that a frame has a value of."""
    for metric in METRICS:
        if metric.kind == kind and metric.read is not None:
            for labels, value in metric.read(frame):
                yield metric, labels, value


def layer_norms(frame: Frame) -> Iterator[tuple[str, float]]:
    """Yield (name of a parameter, its pre-clip norm) for all that have a gradient; what sinks call a layer is that.

    Empty at steps for which only scalars are kept. One with NaN or infinite elements has the norm NaN here: the
    table's own norm is that of its finite elements, and would hide it.
    """
    table = frame.tensors
    if not table.names:
        return
    norms, status = table.column("norm"), table.column("status")
    bad = table.column("nan_count") + table.column("inf_count")
    for name, norm, state, sick in zip(table.names, norms.tolist(), status.tolist(), bad.tolist(), strict=True):
        if state == 0 and (sick > 0 or not math.isnan(norm)):
            yield name, math.nan if sick > 0 else norm
