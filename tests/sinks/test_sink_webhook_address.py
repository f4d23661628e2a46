"""A webhook's address is shown by nothing: what cannot be posted to is refused at once, the rest is masked."""

from __future__ import annotations

import http.client
import traceback
import urllib.error

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_frames import finding

import gradmedic as gm
from gradmedic.sinks import webhook as module
from gradmedic.sinks.queued import Queued
from gradmedic.sinks.webhook_address import secrets_of

BAD = [
    "http://bot:s3cret@127.0.0.1/hook",
    "http://s3cret@127.0.0.1:9/hook",
    "http://127.0.0.1:9/p?token=s3c ret",
    "http://127.0.0.1:9?token=s3c ret",
    "http://127.0.0.1:9/hook?token=s3cret\n",
    " http://127.0.0.1:9/s3cret",
    "http://127.0.0.1:port9s3cret/x",
    "http://127.0.0.1:99999/s3cret",
    "http://127.0.0.1:0/s3cret",
    "http://127.0.0.1:9/a\x7fs3cret",
    "http://127.0.0.1:9/s3crét",
    "http://127.0.0.1:9/\ts3cret",
    "http://[::1/s3cret",
    "http://h\\s3cret/x",
    "http://:9/s3cret",
]


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_cannot_be_posted_to_is_refused_without_being_shown(url):
    with pytest.raises(gm.InputError, match="expected an address that begins with https://") as caught:
        gm.sinks.Webhook(url)
    shown = "".join(traceback.format_exception(caught.value, chain=True)).replace(repr(url), "")
    assert "s3c" not in shown.split("InputError")[-1]
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example.com/services/T0/s3cret", "https://hooks.example.com/…"),
        ("HTTPS://Hooks.example.com:8443?token=s3cret#x", "https://hooks.example.com/…"),
        ("http://[::1]:9/s3cret", "http://[::1]/…"),
        ("http://127.0.0.1:/a%20s3cret?x=%C3%A9@b", "http://127.0.0.1/…"),
        ("https://h.example/bot123:AAs3cret/send", "https://h.example/…"),
    ],
)
def test_good_addresses(url, shown):
    assert repr(gm.sinks.Webhook(url)) == f"Webhook({shown!r}, severity='error')"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_input_error(text):
    for url in (text, f"http://{text}", f"http://h.example:{text}", f"https://h.example/{text}"):
        try:
            sink = gm.sinks.Webhook(url)
        except gm.InputError:
            continue
        module.urllib.request.Request(url)
        assert "/…" in repr(sink)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abcxyz0189-_%", min_size=8, max_size=12), min_size=1, max_size=4), st.booleans())
def test_every_part_of_an_address_is_masked(parts, queried):
    tail = "?" + "&".join(f"k={part}" for part in parts) if queried else "/" + "/".join(parts)
    text = f"at {tail} and https://h.example{tail} and {parts[0]}"
    for secret in secrets_of(f"https://h.example{tail}"):
        text = text.replace(secret, "***")
    assert not any(part in text for part in parts)


def trouble_of(monkeypatch, error):
    sent, slept = [], []

    def send(url, body):
        sent.append(url)
        raise error

    monkeypatch.setattr(module, "_send", send)
    monkeypatch.setattr(module.time, "sleep", slept.append)
    queue = Queued(gm.sinks.Webhook("https://h.example/p?token=s3cret", interval=0))
    queue.emit_finding(finding())
    queue.close()
    return queue, len(sent)


@pytest.mark.parametrize(
    "error", [http.client.InvalidURL("nonnumeric port: 's3 cret@x'"), ValueError("s3 cret"), UnicodeError("s3 cret")]
)
def test_what_is_final_is_tried_once_and_its_text_is_not_shown(monkeypatch, error):
    queue, posts = trouble_of(monkeypatch, error)
    assert (queue.off, posts) == (True, 1)
    assert "cannot be used" in queue.trouble
    assert "cret" not in queue.trouble


def test_the_servers_own_words_are_not_shown(monkeypatch):
    refusal = urllib.error.HTTPError("https://h.example", 404, "no hook S3CRET", {}, None)
    queue, posts = trouble_of(monkeypatch, refusal)
    assert (posts, queue.trouble) == (1, "the webhook's server answers 404 Not Found; check its address")


def test_what_is_no_web_server_is_tried_again(monkeypatch):
    queue, posts = trouble_of(monkeypatch, http.client.BadStatusLine("s3cret?"))
    assert posts == 6  # three times, and three times at the end
    assert queue.trouble.endswith("it does not answer as a web server does (BadStatusLine)")
