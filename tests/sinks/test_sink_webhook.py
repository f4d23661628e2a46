"""Alerts reach a real HTTP server: what is posted, how often, and what happens when it is down."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from sink_frames import finding, frame

import gradmedic as gm
from gradmedic.sinks import webhook as module
from gradmedic.sinks.queued import Queued


class Receiver:
    """Answers with the given codes, the last one over and over."""

    def __init__(self, *codes):
        self.texts, self.bodies, codes = [], [], list(codes)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                code = codes.pop(0) if len(codes) > 1 else codes[0]
                if code < 300:
                    outer.texts.append(body["text"])
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_): ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/T0/secret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    return slept


def test_only_what_is_severe_enough_is_posted():
    with Receiver(200) as receiver:
        sink = gm.sinks.Webhook(receiver.url, severity="error", interval=0)
        sink.emit_finding(finding("GM100", "warning"))
        sink.emit_finding(finding("GM201", "error"))
        sink.emit_finding(finding("GM202", "critical"))
        sink.close()
    assert [text.split("*")[1] for text in receiver.texts] == ["GM201", "GM202"]
    assert [set(body) for body in receiver.bodies] == [{"text"}, {"text"}]
    assert "It is not a number. &lt;b&gt;&amp;" in receiver.texts[0]
    assert "What to do: Do less." in receiver.texts[0]
    assert "\x1b" not in receiver.texts[0]


def test_many_findings_are_few_messages():
    with Receiver(200) as receiver:
        sink = gm.sinks.Webhook(receiver.url, interval=60)
        for _ in range(20):
            sink.emit_finding(finding())
        sink.flush()
        assert len(receiver.texts) == 1
        assert sink.holding
        sink.close()
    assert len(receiver.texts) == 2
    assert receiver.texts[1].count("GM201") == 3
    assert "16 more findings were held back" in receiver.texts[1]


def test_a_failed_post_is_tried_again_with_growing_pauses(pauses):
    with Receiver(500, 429, 200) as receiver:
        sink = gm.sinks.Webhook(receiver.url, interval=0)
        sink.emit_finding(finding())
        sink.close()
    assert len(receiver.bodies) == 3
    assert pauses == [1.0, 2.0]
    assert len(receiver.texts) == 1


@pytest.mark.parametrize(("code", "posts"), [(404, 1), (302, 1), (503, 3)])
def test_a_refusal_is_one_sentence_without_the_address(code, posts):
    with Receiver(code) as receiver:
        queue = Queued(gm.sinks.Webhook(receiver.url))
        queue.emit(frame(0))
        queue.emit_finding(finding())
        queue.ask_to_close()
        queue._thread.join(10)
        assert str(code) in queue.trouble
        assert "secret" not in queue.trouble
        assert queue.sent == 0
        assert queue.dropped == 1
    # what is still held back is tried once more at the end, unless the server wants none of it
    assert len(receiver.bodies) == (posts if code < 500 else 2 * posts)


def test_an_alert_is_kept_until_the_server_is_back():
    with Receiver(500, 500, 500, 200) as receiver:
        sink = gm.sinks.Webhook(receiver.url, interval=0)
        with pytest.raises(ConnectionError):
            sink.emit_finding(finding())
        sink.flush()
        assert len(receiver.texts) == 1
        assert not sink.holding


def test_nobody_there_and_secrets():
    sink = gm.sinks.Webhook("http://127.0.0.1:9/services/secret", interval=0)
    assert "secret" not in repr(sink)
    queue = Queued(sink)
    queue.emit_finding(finding())
    queue.close()
    assert "cannot be reached" in queue.trouble
    assert "secret" not in queue.trouble


@pytest.mark.parametrize("url", ["ftp://h/secret", "secret", None, "http://", "http://[bad/secret"])
def test_what_is_no_address_is_not_shown(url):
    with pytest.raises(gm.InputError) as caught:
        gm.sinks.Webhook(url)
    assert "secret" not in str(caught.value)


def test_chinese_findings_are_told_in_chinese():
    from dataclasses import replace

    text = module.message_of([replace(finding(), lang="zh", message="出现了 NaN。")] * 5, "run1")
    assert "出现在 run1 的第 3 步" in text
    assert "另有 2 个问题未单独发送" in text
