"""What a real scraper makes of the metrics: Debian's Prometheus where it is installed, the client's parser anywhere."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sink_frames import HOSTILE, finding, frame, sick

import gradmedic as gm
from gradmedic.sinks.base import RunLabel
from gradmedic.sinks.metric_table import ALL
from gradmedic.sinks.queued import Queued


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def parsed(text):
    """Return (name, label values) -> number, as the client's own parser reads it."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(each.name, frozenset(each.labels.items())): each.value for each in samples}


@pytest.fixture
def sink():
    made = gm.sinks.Prometheus(port=0)
    made.begin(RunLabel("exp1", "host1", 0))
    yield made
    made.close()


def fill(sink):
    sink.emit(frame(0, logged={HOSTILE: 1.5}))
    sink.emit(sick(1))
    sink.emit(frame(2, HOSTILE))
    sink.emit_finding(finding())


def test_the_text_format_holds_what_the_frames_did(sink):
    fill(sink)
    got = parsed(get(f"http://127.0.0.1:{sink.port}/metrics"))

    def value(name, **labels):
        return got[name, frozenset(labels.items())]

    assert value("gradmedic_steps_total", optimizer="adam") == 2
    assert value("gradmedic_grad_norm", optimizer=HOSTILE, phase="pre_clip") == 4.0
    assert math.isnan(value("gradmedic_grad_norm", optimizer="adam", phase="pre_clip"))
    assert value("gradmedic_grad_norm", optimizer="adam", phase="post_clip") == math.inf
    assert ("gradmedic_loss", frozenset({("optimizer", "adam")})) not in got
    assert value("gradmedic_findings_total", rule="GM201", severity="error") == 1
    info = dict(run="exp1", host="host1", rank="0", version=gm.__version__)
    assert value("gradmedic_run_info", **info) == 1
    declared = {metric.full_name for metric in ALL}
    assert {name for name, _ in got} <= declared


def test_nothing_but_ours_is_exported(sink, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    fill(sink)
    names = {name for name, _ in parsed(get(f"http://127.0.0.1:{sink.port}/metrics"))}
    assert all(name.startswith("gradmedic_") for name in names)


def test_a_port_in_use_is_one_sentence(sink):
    fill(sink)
    second = Queued(gm.sinks.Prometheus(port=sink.port))
    second.emit(frame(0))
    second.close()
    assert second.off
    assert f"cannot listen at 127.0.0.1:{sink.port}: Address already in use" in second.trouble


def test_closing_frees_the_port_and_the_host_may_be_ipv6():
    for host, shown in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")):
        made = gm.sinks.Prometheus(port=0, host=host)
        made.emit(frame(0))
        assert "gradmedic_loss" in get(f"http://{shown}:{made.port}/metrics")
        made.close()
        with pytest.raises(urllib.error.URLError):
            get(f"http://{shown}:{made.port}/metrics")


def test_a_host_that_is_none_is_one_sentence():
    made = Queued(gm.sinks.Prometheus(port=0, host="not an address"))
    made.emit(frame(0))
    made.close()
    assert "cannot listen at not an address" in made.trouble


def test_the_textfile_is_always_whole(tmp_path):
    path = tmp_path / "node" / "run.prom"
    sink = gm.sinks.PrometheusTextfile(path, seconds=0)
    for step in range(3):
        sink.emit(frame(step))
        assert parsed(path.read_text())["gradmedic_steps_total", frozenset({("optimizer", "adam")})] == step + 1
    sink.close()
    assert [each.name for each in path.parent.iterdir()] == ["run.prom"]


def test_the_textfile_is_written_now_and_then_and_at_the_end(tmp_path):
    path = tmp_path / "run.prom"
    sink = gm.sinks.PrometheusTextfile(path, seconds=1000)
    for step in range(3):
        sink.emit(frame(step))
    steps = "gradmedic_steps_total", frozenset({("optimizer", "adam")})
    assert parsed(path.read_text())[steps] == 1
    assert sink.holding
    sink.close()
    assert parsed(path.read_text())[steps] == 3


class RealPrometheus:
    """Debian's prometheus, scraping one target every second."""

    def __init__(self, folder, target):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = folder / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
                    "scrape_configs": [{"job_name": "gradmedic", "static_configs": [{"targets": [target]}]}],
                }
            )
        )
        arguments = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)

    def query(self, expression):
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(expression)}"
        return [(each["metric"], float(each["value"][1])) for each in json.loads(get(url))["data"]["result"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)


def test_it_is_scraped_for_real(sink, tmp_path):
    fill(sink)
    if shutil.which("prometheus") is None:  # what the server would be served, read by the client's parser
        got = parsed(get(f"http://127.0.0.1:{sink.port}/metrics"))
        assert {name for name, _ in got} >= {"gradmedic_steps_total", "gradmedic_run_info"}
        return
    with RealPrometheus(tmp_path, f"127.0.0.1:{sink.port}") as server:
        deadline = time.monotonic() + 60
        found = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                found = server.query("gradmedic_steps_total")
            except OSError:
                continue
        steps = {metric["optimizer"]: value for metric, value in found}
        assert steps == {"adam": 2.0, HOSTILE: 1.0}
        ((_, norm),) = server.query('gradmedic_grad_norm{optimizer="adam",phase="pre_clip"}')
        assert math.isnan(norm)
        assert server.query("up")[0][1] == 1.0
        assert server.query("gradmedic_findings_total")[0][0]["rule"] == "GM201"
