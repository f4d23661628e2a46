"""The live page against a small server: new data appear by themselves, and a lost connection is said and mended."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from gradmedic.frame import Frame
from gradmedic.record import Recorder
from gradmedic.report.page.render import plotly_script, render_page
from gradmedic.serve.server import Server as LiveServer


class Server:
    """Serves the page and the payloads that it is given, and can play dead."""

    def __init__(self):
        self.payloads = []
        self.dead = False
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                status, kind, body = outer.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, path):
        path, _, query = path.partition("?")
        if path == "/":
            return 200, "text/html; charset=utf-8", render_page(None, lang="en", live=True).encode()
        if path == "/plotly.js":
            return 200, "text/javascript", plotly_script().encode()
        if self.dead or not path.startswith("/api/runs"):
            return 503, "text/plain", b""
        if path == "/api/runs":
            listed = [
                {
                    "id": at,
                    "name": one["run"]["name"],
                    "steps": one["run"]["steps"],
                    "ended": one["run"]["ended"],
                    "version": one["version"],
                }
                for at, one in enumerate(self.payloads)
            ]
            return 200, "application/json", json.dumps(listed).encode()
        payload = self.payloads[int(path.rpartition("/")[2])]
        if query == f"version={payload['version']}":
            return 204, "application/json", b""
        return 200, "application/json", json.dumps(payload).encode()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def cut(payload, steps, version):
    """The same run as it was after some steps."""

    def head(packed, count):
        data = base64.b64decode(packed["b"])[: 4 * count]
        return {"t": packed["t"], "n": [count], "b": base64.b64encode(data).decode()}

    kept = json.loads(json.dumps(payload))
    for columns in kept["scalars"].values():
        for entry in columns.values():
            count = int((np.frombuffer(base64.b64decode(entry["step"]["b"]), "<i4") < steps).sum())
            entry["step"], entry["y"] = head(entry["step"], count), head(entry["y"], count)
    kept["run"] |= {"steps": steps, "ended": False, "reason": None}
    kept["version"] = version
    return kept


def test_new_data_appear_without_a_reload_and_keep_the_zoom(server, reader, payloads):
    whole = payloads["healthy"]
    server.payloads = [cut(whole, 30, "a")]
    page = reader()
    page.open(server.address)
    page.page.wait_for_selector("#figure-loss .plot-container")
    assert page.page.inner_text("#status") == "live"
    assert len(page.trace("loss", "loss")["x"]) == 30
    page.page.evaluate("Plotly.relayout('figure-loss', {'xaxis.range': [10, 20]})")
    page.page.evaluate("window.scrollTo({ top: 120, behavior: 'instant' })")
    page.page.evaluate("gradmedic.set({ tensor: 3, metric: 'max_abs' })")
    server.payloads = [{**whole, "version": "b"}]
    page.page.wait_for_selector("#status.ended", timeout=10_000)
    page.settle()
    assert len(page.trace("loss", "loss")["x"]) == 60
    assert page.page.evaluate("document.getElementById('figure-loss')._fullLayout.xaxis.range.slice()") == [10, 20]
    assert page.page.evaluate("[gradmedic.state.tensor, gradmedic.state.metric, window.scrollY]") == [3, "max_abs", 120]
    page.page.wait_for_timeout(1200)
    assert sum(path.startswith("/api/runs/") for path in server.asked) == 2, "what is known already is not asked for"
    assert page.complaints == []


def test_a_lost_connection_is_said_and_mended(server, reader, payloads):
    server.payloads = [payloads["healthy"]]
    page = reader()
    page.open(server.address)
    page.page.wait_for_selector("#figure-loss .plot-container")
    server.dead = True
    page.page.wait_for_selector("#status.lost", timeout=10_000)
    assert page.page.inner_text("#status") == "connection lost, retrying"
    server.dead = False
    page.page.wait_for_selector("#status.ended", timeout=10_000)


def test_it_waits_for_a_run_that_is_not_there_yet(server, reader, payloads):
    page = reader()
    page.open(server.address)
    assert "Waiting for data" in page.page.inner_text("#verdict")
    server.payloads = [payloads["healthy"], payloads["exploding"]]
    page.page.wait_for_selector("#figure-loss .plot-container", timeout=10_000)
    page.page.select_option("#run", "1")
    page.page.wait_for_selector("#verdict .verdict:not(.healthy)", timeout=10_000)
    assert page.page.evaluate("document.title").startswith("exploding")
    assert page.complaints == []


def test_what_is_recorded_is_on_the_live_page_two_seconds_later(reader, tmp_path):
    recorder = Recorder(tmp_path / "grows", meta={})
    put = lambda step: recorder.put(Frame(step, "adam", loss=1.0 / (step + 1), grad_norm=2.0 + step), keep=True)  # noqa: E731
    for step in range(10):
        put(step)
    recorder.flush()
    with LiveServer([tmp_path / "grows"], port=0) as live:
        page = reader()
        page.open(live.url)
        page.page.wait_for_selector("#figure-loss .plot-container", timeout=20_000)
        assert page.trace("loss", "loss")["x"] == list(range(10))
        for step in range(10, 25):
            put(step)
        recorder.flush()
        began = time.monotonic()
        while len(page.trace("loss", "loss")["x"]) < 25:
            assert time.monotonic() - began < 15, "new steps never came"
            page.page.wait_for_timeout(50)
        np.testing.assert_allclose(page.trace("norm", "before clipping")["y"], 2.0 + np.arange(25))
        assert page.page.inner_text("#status") == "live"
        recorder.close()
        page.page.wait_for_selector("#status.ended", timeout=15_000)
        assert page.complaints == []
