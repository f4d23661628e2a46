"""The metrics that stand in a `MetricState`, as the Prometheus client library has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradmedic.sinks.base import require
from gradmedic.sinks.metric_state import MetricState

LEAST = "0.19"


def require_client() -> Any:
    """Import the Prometheus client, or raise InputError that says what to install."""
    return require("prometheus_client", extra="prometheus", package="prometheus-client", least=LEAST)


def registry_of(state: MetricState) -> Any:
    """Return a registry of its own that holds this state and nothing of the process."""
    client = require_client()
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state))
    return registry


class _Collector:
    """Makes the families anew at each scrape: what is not known any more is gone, not frozen."""

    def __init__(self, state: MetricState) -> None:
        self._state = state

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client import core

        kinds: dict[str, Any] = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "info": core.GaugeMetricFamily,  # as the text format has it; the client's own has labels as values
        }
        for metric, series in self._state.samples():
            family = kinds[metric.kind](metric.full_name, metric.help, labels=metric.labels)
            for labels, value in series:
                family.add_metric([_utf8(label) for label in labels], value)
            yield family


def _utf8(label: str) -> str:
    return label.encode("utf-8", "replace").decode()  # a lone surrogate would fail the whole scrape
