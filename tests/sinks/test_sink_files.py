"""JSON lines, CSV and TensorBoard: read back by readers that know nothing of us."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
from sink_frames import HOSTILE, finding, frame, sick
from tensorboard.backend.event_processing import event_accumulator

import gradmedic as gm
from gradmedic.sinks.base import RunLabel
from gradmedic.sinks.queued import Queued

EVERYTHING = {"scalars": 0, "histograms": 0, "tensors": 0, "compressedHistograms": 0, "images": 0}


def no_constants(name):
    raise AssertionError(f"not strict JSON: {name}")


def read_board(folder):
    board = event_accumulator.EventAccumulator(str(folder), size_guidance=EVERYTHING)
    board.Reload()
    return board


def test_json_lines(tmp_path):
    path = tmp_path / "new" / "run.jsonl"
    sink = gm.sinks.JsonLines(path, layers=True)
    sink.begin(RunLabel("exp1"))
    sink.emit(frame(0, HOSTILE, logged={HOSTILE: math.inf}))
    sink.emit(sick(1))
    sink.emit_finding(finding())
    sink.close()
    data = path.read_bytes()
    assert data.isascii()
    assert not any(byte < 32 and byte != 10 for byte in data)
    first, second, third = (json.loads(line, parse_constant=no_constants) for line in data.decode().splitlines())
    assert (first["kind"], first["step"], first["optimizer"], first["loss"]) == ("step", 0, HOSTILE, 1.0)
    assert first["logged"] == {HOSTILE: "Infinity"}
    assert first["layers"] == {"a.weight": 1.0, "b.weight": "NaN"}
    assert [line["run"] for line in (first, second, third)] == ["exp1"] * 3
    assert (second["loss"], second["grad_norm"], second["skipped"]) == (None, "NaN", True)
    assert (third["kind"], third["code"], third["where"]) == ("finding", "GM201", [HOSTILE])


def test_json_lines_on_a_stream_leave_it_open(capsys):
    text = io.StringIO()
    sink = gm.sinks.JsonLines(text)
    sink.emit(frame(0))
    sink.close()
    assert json.loads(text.getvalue())["step"] == 0
    gm.sinks.JsonLines().emit(frame(7))
    assert json.loads(capsys.readouterr().out)["step"] == 7


def test_csv(tmp_path):
    path = tmp_path / "run.csv"
    for step in (0, 1):  # a second run adds to the file
        sink = gm.sinks.Csv(path)
        sink.begin(RunLabel(f"=run{step}"))
        sink.emit(frame(step, '=1+1,"\n', logged={"a": 2.0}))
        sink.emit(sick(step))
        sink.emit_finding(finding())
        sink.close()
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"]) for row in rows] == [("0", "1.0"), ("0", ""), ("1", "0.5"), ("1", "")]
    assert rows[0]["optimizer"] == "'=1+1,\"\n"
    assert (rows[1]["grad_norm"], rows[1]["grad_norm_post"], rows[1]["skipped"]) == ("NaN", "inf", "true")
    assert json.loads(rows[0]["logged"]) == {"a": 2.0}
    with (tmp_path / "run-findings.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["code"], row["run"]) for row in found] == [("GM201", "'=run0"), ("GM201", "'=run1")]
    assert [row["run"] for row in rows] == ["'=run0", "'=run0", "'=run1", "'=run1"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: gm.sinks.Csv(path), "holds something else"),
        (lambda path: gm.sinks.Csv(path / "x" / "y.csv"), "cannot write to"),
        (lambda path: gm.sinks.JsonLines(path / "y"), "cannot write to"),
        (lambda path: gm.sinks.TensorBoard(path), "cannot write to"),
        (lambda path: gm.sinks.PrometheusTextfile(path / "y.prom"), "cannot write"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_one_sentence(make, said, tmp_path):
    path = tmp_path / "taken"
    path.write_text("a file of somebody else\n")
    queue = Queued(make(path))
    queue.emit(frame(0))
    queue.close()
    assert queue.off
    assert said in queue.trouble
    assert "\n" not in queue.trouble
    assert path.read_text() == "a file of somebody else\n"


def test_tensorboard_reads_what_was_written(tmp_path):
    sink = gm.sinks.TensorBoard(tmp_path, layers_every=1)
    sink.emit(frame(0, histogram=True, logged={"acc": 0.5}))
    sink.emit(sick(1))
    sink.emit(frame(0, "second"))
    sink.emit_finding(finding(step=1))
    board = read_board(tmp_path)  # while it is being written
    assert [(event.step, event.value) for event in board.Scalars("train/loss")] == [(0, 1.0)]
    norms = board.Scalars("train/grad_norm")
    assert [event.step for event in norms] == [0, 1]
    assert norms[0].value == 2.0
    assert math.isnan(norms[1].value)
    assert board.Scalars("train/grad_norm_post")[1].value == math.inf
    assert board.Scalars("train/logged.acc")[0].value == 0.5
    assert board.Scalars("second/loss")[0].value == 1.0
    assert board.Scalars("norm/a.weight")[0].wall_time == 1_700_000_000.0
    assert f"norm/{HOSTILE}" not in board.Tags()["scalars"]  # it had no gradient
    text = board.Tensors("finding/GM201")[0].tensor_proto.string_val[0].decode()
    assert "It is not a number." in text
    sink.close()


def test_tensorboard_histograms_count_zeros_and_no_nan(tmp_path):
    sink = gm.sinks.TensorBoard(tmp_path)
    sink.emit(frame(0, histogram=True))
    sink.close()
    board = read_board(tmp_path)
    (event,) = board.Histograms("magnitude/a.weight")
    histogram = event.histogram_value
    buckets = {limit: count for limit, count in zip(histogram.bucket_limit, histogram.bucket, strict=True) if count}
    assert buckets == {0.0: 3.0, 2.0**-2: 2.0, 2.0**-1: 3.0}  # bin k ends at 2^(k-47)
    assert (histogram.num, histogram.max, histogram.min) == (8.0, 0.5, 0.0)
    (sick_one,) = board.Histograms("magnitude/b.weight")
    assert sick_one.histogram_value.num == 7.0
    assert np.isfinite(sick_one.histogram_value.bucket_limit).all()
    assert board.Tags()["histograms"] == ["magnitude/a.weight", "magnitude/b.weight"]


def test_tensorboard_has_a_folder_of_its_own(tmp_path):
    (tmp_path / "events.out.tfevents.1.somebody").write_bytes(b"")
    for _ in range(2):
        sink = gm.sinks.TensorBoard(tmp_path)
        sink.emit(frame(0))
        sink.close()
    assert sorted(path.parent.name for path in tmp_path.rglob("*.gradmedic.*")) == ["gradmedic", "gradmedic-2"]
    assert read_board(tmp_path / "gradmedic").Scalars("train/loss")[0].value == 1.0


@pytest.mark.parametrize("queued", [False, True])
def test_a_sink_may_be_used_for_a_second_run(tmp_path, queued):
    board, lines = gm.sinks.TensorBoard(tmp_path / "tb"), gm.sinks.JsonLines(tmp_path / "x.jsonl")
    sinks = [Queued(board), Queued(lines)] if queued else [board, lines]
    for step in range(2):
        for sink in sinks:
            sink.begin(RunLabel())
            sink.emit(frame(step))
            sink.close()
    assert len(list((tmp_path / "tb").iterdir())) == 2
    assert [json.loads(line)["step"] for line in (tmp_path / "x.jsonl").open()] == [0, 1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gm.sinks.TensorBoard(""), "expected a folder"),
        (lambda: gm.sinks.TensorBoard("x", layers=-1), "layers of at least 0"),
        (lambda: gm.sinks.Csv(3), "expected the path of a file"),
        (lambda: gm.sinks.JsonLines(" "), "empty path"),
        (lambda: gm.sinks.Prometheus(70000), "port from 0 to 65535"),
        (lambda: gm.sinks.PrometheusTextfile("x.txt"), "ends in .prom"),
        (lambda: gm.sinks.Wandb(run=3), "a name or a run"),
        (lambda: gm.sinks.Wandb(project=" "), "name of a project"),
        (lambda: gm.sinks.MLflow(uri=1), "uri to be a text"),
        (lambda: gm.sinks.OpenTelemetry("x"), "expected a meter"),
        (lambda: gm.sinks.Webhook("https://h/x", "fatal"), "a severity out of"),
    ],
)
def test_arguments_are_checked_at_once(make, said):
    with pytest.raises(gm.InputError, match=said):
        make()


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("tensorboard", lambda path: gm.sinks.TensorBoard(path)),
        ("wandb", lambda path: gm.sinks.Wandb("p")),
        ("mlflow", lambda path: gm.sinks.MLflow(f"sqlite:///{path}/x.db")),
        ("prometheus_client", lambda path: gm.sinks.Prometheus(0)),
        ("prometheus_client", lambda path: gm.sinks.PrometheusTextfile(path / "x.prom")),
        ("opentelemetry.metrics", lambda path: gm.sinks.OpenTelemetry()),
    ],
)
def test_a_missing_or_old_library_is_one_sentence(module, make, tmp_path, monkeypatch):
    from gradmedic.sinks import base

    def missing(name):
        raise ModuleNotFoundError(name=name.partition(".")[0])

    for replaced, said in (
        ("import_module", "which is not installed: pip install 'gradmedic["),
        (None, "or later, found"),
    ):
        with monkeypatch.context() as patch:
            if replaced:
                patch.setattr(base.importlib, replaced, missing)
            else:
                patch.setattr(base, "version_of", lambda package: "0.1.0rc1")
            queue = Queued(make(tmp_path))
            queue.emit(frame(0))
            queue.close()
        assert queue.off
        assert said in queue.trouble, module
