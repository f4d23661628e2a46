"""What all metrics stand at: gauges of the last step, counters so far, the largest layers."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradmedic.sinks.base import RunLabel
from gradmedic.sinks.metric_table import FINDINGS, LAYER_GRAD_NORM, RUN, Metric, layer_norms, readings

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

_MOST_OPTIMIZERS = 16
_MOST_REASONS = 16
OTHER = "other"
Sample = tuple[tuple[str, ...], float]


class MetricState:
    """Adds frames and findings up. Safe to read in one thread while another adds.

    Args:
        top_layers: how many parameters have a series of their own (label `layer`) at a time, largest first; 0 for none.

    The number of series is bounded however long the run and however many its names: optimizers and reasons beyond
    16 are one, "other", and no more than four times `top_layers` layers ever come up.
    """

    def __init__(self, top_layers: int = 10) -> None:
        self.top_layers = top_layers
        self._lock = threading.Lock()
        self._optimizers: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._gauges: dict[str, dict[Metric, dict[tuple[str, ...], float]]] = {}
        self._layers: dict[str, dict[str, float]] = {}
        self._layers_ever: set[str] = set()
        self._counters: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._run: tuple[str, ...] | None = None

    def begin(self, run: RunLabel, version: str) -> None:
        """Take what identifies the run."""
        self._run = (run.name, run.host, str(run.rank), version)

    def add(self, frame: Frame) -> None:
        """Add a frame: its gauges replace those of the same optimizer's frame before."""
        optimizer = _bounded(frame.optimizer, self._optimizers, _MOST_OPTIMIZERS)
        gauges: dict[Metric, dict[tuple[str, ...], float]] = {}
        for metric, labels, value in readings(frame, "gauge"):
            key = (optimizer, *labels)
            gauges.setdefault(metric, {})[key] = value
        layers = self._largest(frame) if self.top_layers and frame.tensors.names else None
        with self._lock:
            self._gauges[optimizer] = gauges
            if layers is not None:
                self._layers[optimizer] = layers
            for metric, labels, value in readings(frame, "counter"):
                known = tuple(_bounded(label, self._reasons, _MOST_REASONS) for label in labels)
                self._count(metric, (optimizer, *known), value)

    def add_finding(self, finding: Finding) -> None:
        """Count a finding."""
        with self._lock:
            self._count(FINDINGS, (finding.code, finding.severity), 1.0)

    def samples(self) -> Iterator[tuple[Metric, list[Sample]]]:
        """Yield each metric that has a value, with its series: (values of its labels, number)."""
        with self._lock:
            found: dict[Metric, list[Sample]] = {}
            for gauges in self._gauges.values():
                for metric, series in gauges.items():
                    found.setdefault(metric, []).extend(series.items())
            for metric, series in self._counters.items():
                found.setdefault(metric, []).extend(series.items())
            for optimizer, layers in self._layers.items():
                entries = [((optimizer, layer), norm) for layer, norm in layers.items()]
                found.setdefault(LAYER_GRAD_NORM, []).extend(entries)
            if self._run is not None:
                found[RUN] = [(self._run, 1.0)]
        yield from found.items()

    def _count(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        series = self._counters.setdefault(metric, {})
        series[labels] = series.get(labels, 0.0) + value

    def _largest(self, frame: Frame) -> dict[str, float]:
        norms = dict(layer_norms(frame))
        if len(self._layers_ever) >= 4 * self.top_layers:
            norms = {layer: norm for layer, norm in norms.items() if layer in self._layers_ever}
        ranked = sorted(norms.items(), key=_sick_first)[: self.top_layers]
        self._layers_ever.update(layer for layer, _ in ranked)
        return dict(ranked)


def _sick_first(entry: tuple[str, float]) -> tuple[bool, float]:
    return not math.isnan(entry[1]), -entry[1]


def _bounded(label: str, known: dict[str, str], most: int) -> str:
    if label not in known:
        if len(known) >= most:
            return OTHER
        known[label] = label
    return label
