"""What an OpenTelemetry SDK collects from the meter that the sink was given."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sink_frames import HOSTILE, finding, frame, sick

import gradmedic as gm
from gradmedic.sinks.metric_table import FINDINGS, LAYER_GRAD_NORM, METRICS


def collected(reader):
    found, data = {}, reader.get_metrics_data()
    for resource in () if data is None else data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = {frozenset(point.attributes.items()): point.value for point in metric.data.data_points}
                found[metric.name] = (metric.unit, points)
    return found


def test_gauges_and_counters():
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    sink = gm.sinks.OpenTelemetry(meter)
    sink.emit(frame(0, logged={HOSTILE: 1.0}))
    sink.emit(sick(1))
    sink.emit_finding(finding())
    pre = frozenset({("optimizer", "adam"), ("phase", "pre_clip")})
    got = collected(reader)
    assert pre not in got.get("gradmedic.grad_norm", ("", {}))[1]  # NaN; what it was before is not shown in its place
    assert "gradmedic.loss" not in got
    not_finite = {(dict(labels)["metric"], dict(labels).get("phase")) for labels in got["gradmedic.not_finite"][1]}
    assert not_finite == {("grad_norm", "pre_clip"), ("grad_norm", "post_clip"), ("layer_grad_norm", None)}
    sink.emit(frame(2))
    got = collected(reader)
    adam = frozenset({("optimizer", "adam")})
    assert got["gradmedic.steps"][1] == {adam: 3.0}
    assert got["gradmedic.steps_clipped"][1] == {adam: 3.0}
    assert got["gradmedic.overhead"] == ("s", {adam: 0.375})
    assert got["gradmedic.loss"][1][adam] == 1 / 3
    assert got["gradmedic.grad_norm"][1][pre] == 4.0
    assert got["gradmedic.clip_ratio"] == ("1", {adam: 0.75})
    assert got["gradmedic.findings"][1] == {frozenset({("rule", "GM201"), ("severity", "error")}): 1.0}
    layers = {dict(labels)["layer"]: value for labels, value in got["gradmedic.layer_grad_norm"][1].items()}
    assert layers == {"a.weight": 3.0}
    sink.close()
    assert collected(reader) == {}


def test_each_metric_has_an_instrument_of_its_own():
    class Meter:
        def __init__(self):
            self.names = []

        def create_observable_gauge(self, name, **_):
            self.names.append(name)

        create_observable_counter = create_observable_gauge

    meter = Meter()
    gm.sinks.OpenTelemetry(meter).open()
    assert len(set(meter.names)) == len(meter.names) == len(METRICS) + len((FINDINGS, LAYER_GRAD_NORM)) + 1


def test_without_an_sdk_nothing_happens():
    sink = gm.sinks.OpenTelemetry()
    sink.emit(frame(0))
    sink.close()
