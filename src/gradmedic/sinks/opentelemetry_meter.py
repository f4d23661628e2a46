"""Metrics through OpenTelemetry's API: which exporter they go to is for the program's SDK to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink, require
from gradmedic.sinks.metric_state import MetricState
from gradmedic.sinks.metric_table import FINDINGS, LAYER_GRAD_NORM, METRICS, PREFIX, Metric

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

LEAST = "1.15"
_UNITS = {"seconds": "s", "ratio": "1", "": "1"}
_Series = tuple[dict[str, str], float]


class OpenTelemetry(BaseSink):
    """Offers gauges and counters through a meter; needs `gradmedic[opentelemetry]`, and an SDK set up by the program.

    Instruments are called `gradmedic.grad_norm`, `gradmedic.steps`, …, with the labels of docs/sinks.md as attributes.
    They are observed: the SDK asks for them when it exports, and a step costs no call. OpenTelemetry has no NaN and no
    infinity: such a value is left out, and `gradmedic.not_finite` is 1 for its metric. Without an SDK nothing happens.

    Args:
        meter: a meter; None is the program's own, called "gradmedic".
        top_layers: how many parameters have an attribute `layer` of their own, largest gradient first; 0 for none.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.OpenTelemetry()
        OpenTelemetry()
    """

    def __init__(self, meter: Any = None, *, top_layers: int = 10) -> None:
        super().__init__()
        if meter is not None and not callable(getattr(meter, "create_observable_gauge", None)):
            raise InputError(f"OpenTelemetry: expected a meter, got {meter!r}; leave it out for the program's own")
        self._meter = meter
        self._state = MetricState(top_layers)
        self._live = True
        self._observation: Any = None

    def __repr__(self) -> str:
        return "OpenTelemetry()"

    def open(self) -> None:
        """Make the instruments."""
        import gradmedic

        api = require("opentelemetry.metrics", extra="opentelemetry", package="opentelemetry-api", least=LEAST)
        self._live = True
        if self._observation is not None:  # opened again: the instruments are still there
            return
        self._observation = api.Observation
        meter = self._meter or api.get_meter(PREFIX, gradmedic.__version__)
        for metric in (*METRICS, FINDINGS, LAYER_GRAD_NORM):
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            name = f"{PREFIX}.{metric.name.removesuffix('_seconds')}"
            make(name, callbacks=[self._observer(metric)], unit=_UNITS[metric.unit], description=metric.help)
        meter.create_observable_gauge(
            f"{PREFIX}.not_finite", callbacks=[self._not_finite], description="1 for a metric that is NaN or infinite."
        )

    def write(self, frame: Frame) -> None:
        """Add a step."""
        self._state.add(frame)

    def write_finding(self, finding: Finding) -> None:
        """Count a finding."""
        self._state.add_finding(finding)

    def finish(self) -> None:
        """Have nothing to tell any more; instruments cannot be taken back."""
        self._live = False

    def _series(self, metric: Metric) -> Iterator[_Series]:
        if self._live:
            for labels, value in dict(self._state.samples()).get(metric, ()):
                yield dict(zip(metric.labels, labels, strict=True)), value

    def _observer(self, metric: Metric) -> Callable[[Any], Iterator[Any]]:
        def observe(_: Any) -> Iterator[Any]:
            for attributes, value in self._series(metric):
                if math.isfinite(value):
                    yield self._observation(value, attributes)

        return observe

    def _not_finite(self, _: Any) -> Iterator[Any]:
        for metric in (*METRICS, LAYER_GRAD_NORM):
            for attributes, value in self._series(metric):
                if not math.isfinite(value):
                    yield self._observation(1, {"metric": metric.name, **attributes})
