"""The metric table and what is counted from frames: known numbers, bounded series, Prometheus' naming rules."""

from __future__ import annotations

import math
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sink_frames import HOSTILE, finding, frame, sick

import gradmedic as gm
from gradmedic.sinks.metric_paths import MetricPaths, cleaner
from gradmedic.sinks.metric_state import MetricState
from gradmedic.sinks.metric_table import ALL, LAYER_GRAD_NORM, METRICS, layer_norms, readings, reason_label


def standing(state):
    return {metric.name: dict(series) for metric, series in state.samples()}


def test_names_follow_the_rules():
    names = [metric.full_name for metric in ALL]
    assert len(set(names)) == len(names)
    for metric in ALL:
        assert re.fullmatch(r"gradmedic_[a-z][a-z0-9_]*", metric.full_name)
        assert metric.full_name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert (metric.unit == "seconds") == ("seconds" in metric.name)
        assert (metric.unit == "ratio") == metric.name.endswith("_ratio")


def test_counters_are_what_the_frames_add_up_to():
    state = MetricState()
    for each in (frame(0), frame(1, clipped=False), sick(2), frame(3), frame(0, "other")):
        state.add(each)
    for code, severity in (("GM201", "error"), ("GM201", "error"), ("GM412", "warning")):
        state.add_finding(finding(code, severity))
    got = standing(state)
    assert got["steps"] == {("adam",): 4.0, ("other",): 1.0}
    assert got["steps_clipped"] == {("adam",): 3.0, ("other",): 1.0}
    assert got["steps_skipped"] == {("adam", "non-finite gradients"): 1.0}
    assert got["nonfinite_steps"] == {("adam",): 1.0, ("other",): 0.0}
    assert got["overhead_seconds"] == {("adam",): 0.5, ("other",): 0.125}
    assert got["findings"] == {("GM201", "error"): 2.0, ("GM412", "warning"): 1.0}


def test_gauges_are_those_of_the_last_step_and_unknown_ones_are_gone():
    state = MetricState()
    state.add(frame(0))
    assert standing(state)["loss"] == {("adam",): 1.0}
    assert standing(state)["learning_rate"] == {("adam", "0"): 0.1, ("adam", "1"): 0.01}
    state.add(sick(1))
    got = standing(state)
    assert "loss" not in got
    assert math.isnan(got["grad_norm"]["adam", "pre_clip"])
    assert got["grad_norm"]["adam", "post_clip"] == math.inf
    assert got["nonfinite_elements"] == {("adam",): 3.0}


def test_the_label_layer_holds_names_of_parameters_and_the_help_says_so():
    names = {name for name, _ in layer_norms(frame(0))}
    assert names == {"a.weight", "b.weight"}
    assert "layer is the name of the parameter, such as encoder.0.weight" in LAYER_GRAD_NORM.help


def test_layers_that_are_not_finite_come_first_and_absent_ones_not_at_all():
    assert [name for name, _ in layer_norms(frame(0))] == ["a.weight", "b.weight"]
    state = MetricState(top_layers=1)
    state.add(frame(0))
    ((labels, norm),) = standing(state)["layer_grad_norm"].items()
    assert labels == ("adam", "b.weight")
    assert math.isnan(norm)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=60))
def test_the_number_of_series_is_bounded(names):
    state = MetricState(top_layers=2)
    for at, name in enumerate(names):
        state.add(frame(at, name, skipped=True, skip_reason=name))
    got = standing(state)
    assert len(got["steps"]) <= 17
    assert len({reason for _, reason in got["steps_skipped"]}) <= 17
    assert sum(got["steps"].values()) == len(names)
    assert len({layer for _, layer in got["layer_grad_norm"]}) <= 8


def test_reasons_have_no_numbers():
    assert reason_label("loss spike (z = 8.3 > 6)") == "loss spike"
    assert reason_label("non-finite gradients under the loss scale") == "non-finite gradients under the loss scale"
    assert reason_label(None) == "unknown"


def test_paths_name_further_optimizers_and_count():
    paths = MetricPaths(cleaner(r"[^\w.\- ]", 100), layers=1, layers_every=2)
    first = paths.of(frame(0))
    assert first["gradmedic/loss"] == 1.0
    assert first["gradmedic/grad_norm/pre_clip"] == 2.0
    assert first["gradmedic/layer_grad_norm/a.weight"] == 1.0
    assert first["gradmedic/steps_total"] == 1.0
    assert "gradmedic/layer_grad_norm/b.weight" not in first
    second = paths.of(sick(1))
    assert second["gradmedic/steps_total"] == 2.0
    assert second["gradmedic/steps_skipped_total/non-finite gradients"] == 1.0
    assert "gradmedic/loss" not in second
    assert not any("layer" in path for path in second)
    assert paths.of(frame(0, "G/x\n"))["gradmedic/G_x_/loss"] == 1.0
    assert (
        len(list(readings(frame(0), "gauge")))
        == sum(1 for path in first if not path.endswith("_total") and "layer" not in path) + 1
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=400), min_size=2, max_size=20, unique=True))
def test_names_fit_and_stay_apart(names):
    clean = cleaner(r"[^\w.\- ]", 100)
    fitting = [clean(name) for name in names]
    assert all(0 < len(each) <= 100 and "/" not in each for each in fitting)
    assert [clean(name) for name in names] == fitting
    # a name that is fitting by itself may meet one that was made to fit; two that are made to fit never meet
    changed = [each for name, each in zip(names, fitting, strict=True) if name != each]
    assert len(set(changed)) == len(changed)


def test_each_metric_of_a_frame_has_a_value_somewhere():
    frames = (frame(0), sick(1), gm.Frame(2, "o", logged={HOSTILE: 1.0}))
    seen = {metric.name for each in frames for kind in ("gauge", "counter") for metric, _, _ in readings(each, kind)}
    assert seen == {metric.name for metric in METRICS}


def test_the_page_lists_every_metric_and_every_sink():
    page = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text(encoding="utf-8")
    for metric in ALL:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        assert f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help.rstrip('.')} |" in page
    for name in set(gm.sinks.__all__) - {"BaseSink", "Queued"}:
        assert f"| `gm.sinks.{name}(" in page
