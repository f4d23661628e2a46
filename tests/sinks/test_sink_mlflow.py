"""MLflow with a real database: what its own client reads back."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

import pytest
from sink_frames import HOSTILE, finding, frame, sick

import gradmedic as gm
from gradmedic.sinks.base import RunLabel
from gradmedic.sinks.queued import Queued


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    # In memory where that can be had: making the tables writes through to the disk some hundred times.
    import tempfile

    place = Path(tempfile.mkdtemp(dir="/dev/shm")) if Path("/dev/shm").is_dir() else tmp_path_factory.mktemp("db")
    patch = pytest.MonkeyPatch()
    patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield f"sqlite:///{place}/mlflow.db"
    patch.undo()
    for file in place.iterdir():
        file.unlink()
    place.rmdir()


def runs_of(client, experiment):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


@pytest.mark.slow
def test_a_run_of_its_own(uri):
    import mlflow

    before = mlflow.get_tracking_uri()
    sink = gm.sinks.MLflow(uri, "digits", layers_every=1)
    sink.begin(RunLabel("exp1"))
    sink.emit(frame(10, logged={HOSTILE: 0.5, "../up//a": 1.0, "..": 2.0}))
    sink.emit(sick(11))
    sink.emit_finding(finding())
    client = mlflow.MlflowClient(uri)
    (run,) = runs_of(client, "digits")
    assert run.info.status == "RUNNING"
    sink.close()
    (run,) = runs_of(client, "digits")
    assert (run.info.run_name, run.info.status) == ("exp1", "FINISHED")
    assert run.data.tags["gradmedic.finding.GM201"].startswith("error, step 3: It is not a number.")
    (loss,) = client.get_metric_history(run.info.run_id, "gradmedic/loss")
    assert (loss.step, loss.value, loss.timestamp) == (10, pytest.approx(1 / 11), 1_700_000_010_000)
    norms = client.get_metric_history(run.info.run_id, "gradmedic/grad_norm/pre_clip")
    assert norms[0].value == 12.0
    assert math.isnan(norms[1].value)
    post = client.get_metric_history(run.info.run_id, "gradmedic/grad_norm/post_clip")
    assert post[1].value > 1e308  # MLflow's own stand-in for infinity
    assert run.data.metrics["gradmedic/layer_grad_norm/a.weight"] == 12.0
    logged = [name for name in run.data.metrics if name.startswith("gradmedic/logged/")]
    assert len(logged) == 3
    assert all(re.fullmatch(r"[/\w.\- ]{1,250}", name) for name in run.data.metrics)
    assert mlflow.get_tracking_uri() == before
    assert mlflow.active_run() is None


def test_many_numbers_go_in_few_requests(uri):
    sink = gm.sinks.MLflow(uri, "batches")
    sink.emit(frame(0))
    sizes = []
    send = sink._client.log_batch
    sink._client.log_batch = lambda run, metrics: (sizes.append(len(metrics)), send(run, metrics=metrics))
    for step in range(1, 120):
        sink.emit(frame(step))
    sink.close()
    assert all(size <= 500 for size in sizes)
    assert len(sizes) < 60
    import mlflow

    client = mlflow.MlflowClient(uri)
    (run,) = runs_of(client, "batches")
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "gradmedic/loss")]
    assert steps == list(range(120))


def test_the_active_run_is_joined_and_left_open(uri, monkeypatch):
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        with mlflow.start_run() as run:
            sink = gm.sinks.MLflow()
            sink.begin(RunLabel())
            sink.emit(frame(0))
            sink.close()
            mlflow.log_metric("theirs", 1.0)
        client = mlflow.MlflowClient(uri)
        assert client.get_run(run.info.run_id).data.metrics["gradmedic/loss"] == 1.0
        assert client.get_run(run.info.run_id).data.metrics["theirs"] == 1.0
    finally:
        mlflow.set_tracking_uri(before)


def test_a_server_that_goes_away_loses_nothing_that_fits(uri):
    sink = gm.sinks.MLflow(uri, "outage")
    sink.emit(frame(0))
    sink._send()
    send, down = sink._client.log_batch, [True]

    def refuse(run, metrics):
        if down[0]:
            raise ConnectionError("down")
        send(run, metrics=metrics)

    sink._client.log_batch = refuse
    sink._sent_at = -math.inf
    for step in (1, 2):
        sink._sent_at = -math.inf
        with pytest.raises(ConnectionError):
            sink.emit(frame(step))
    down[0] = False
    sink.close()
    import mlflow

    client = mlflow.MlflowClient(uri)
    (run,) = runs_of(client, "outage")
    assert [each.step for each in client.get_metric_history(run.info.run_id, "gradmedic/loss")] == [0, 1, 2]


def test_a_server_that_is_down_is_said_at_once_without_the_password():
    queue = Queued(gm.sinks.MLflow("http://user:hidden@127.0.0.1:9", "x"))
    began = time.monotonic()
    queue.emit(frame(0))
    queue.close()
    assert time.monotonic() - began < 30
    assert "127.0.0.1:9 cannot be reached" in queue.trouble
    assert "hidden" not in queue.trouble
    assert (queue.sent, queue.dropped, queue.off) == (0, 1, False)


def test_a_password_is_not_shown():
    assert gm.sinks.MLflow("http://user:hidden@127.0.0.1:9").secrets == ("hidden",)
