"""Alerts to a webhook: findings as messages that Slack and its kin show."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, get_args

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.sink_checks import check_seconds
from gradmedic.sinks.webhook_address import check_address, secrets_of
from gradmedic.sinks.words import words
from gradmedic.types import SEVERITIES, Severity

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

_ATTEMPTS = 3
_TIMEOUT = 5.0
_MOST_CHARACTERS = 3000
_MOST_HELD = 100
_SIGNS = {"info": "ℹ️", "warning": "⚠️", "error": "❗", "critical": "🚨"}


class Webhook(BaseSink):
    """Posts `{"text": "…"}` for findings of a severity or above.

    At most one message every `interval` seconds; findings in between are put together in the next one. A failed post
    is tried again, three times in all, with growing pauses. The address is a secret: no message, record or `repr` has
    more of it than the host.

    Args:
        url: http or https; percent-encoded, and without a user name or password.
        severity: from which findings are posted: "info", "warning", "error" or "critical".
        interval: least seconds between two messages, >= 0.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.Webhook("https://hooks.example.com/services/T0/secret")
        Webhook('https://hooks.example.com/…', severity='error')
    """

    wants_frames = False
    keeps_trying = True
    patience = 20.0

    def __init__(self, url: str, severity: Severity = "error", *, interval: float = 60.0) -> None:
        super().__init__()
        self._shown = check_address(url)
        if severity not in get_args(Severity):
            raise InputError(f"Webhook: expected a severity out of {', '.join(SEVERITIES)}, got {severity!r}")
        check_seconds(interval, "Webhook: interval")
        self._url = url
        self.secrets = secrets_of(url)
        self._least = SEVERITIES.index(severity)
        self._severity = severity
        self._interval = interval
        self._held: list[Finding] = []
        self._posted_at = float("-inf")

    def __repr__(self) -> str:
        return f"Webhook({self._shown!r}, severity={self._severity!r})"

    def write(self, frame: Frame) -> None:
        """Take no notice of a step."""

    def write_finding(self, finding: Finding) -> None:
        """Post a finding, or hold it back for the next message."""
        if SEVERITIES.index(finding.severity) >= self._least:
            self._held.append(finding)
            self.holding = True
            self.flush()

    def flush(self) -> None:
        """Post what is held back, if the last message is long enough ago."""
        if self._held and time.monotonic() - self._posted_at >= self._interval:
            self._post_held()

    def finish(self) -> None:
        """Post what is held back."""
        if self._held:
            self._post_held()

    def _post_held(self) -> None:
        held, self._held, self.holding = self._held, [], False
        self._posted_at = time.monotonic()
        try:
            _post(self._url, message_of(held, self.run.name))
        except ConnectionError:
            self._held, self.holding = held[-_MOST_HELD:], True
            raise


def message_of(findings: list[Finding], run: str) -> str:
    """Return one message for all these findings: the first three in words, the others as a number."""
    told = [_paragraph(finding, run) for finding in findings[:3]]
    if len(findings) > len(told):
        told.append(words(findings[0].lang)["more"].format(n=len(findings) - len(told)))
    return "\n\n".join(told)[:_MOST_CHARACTERS]


def _paragraph(finding: Finding, run: str) -> str:
    sentences = words(finding.lang)
    place = sentences["finding"].format(run=run, step=finding.step)
    name = finding.title or finding.name
    lines = [f"{_SIGNS[finding.severity]} *{finding.code}* {name} ({finding.severity}), {place}", finding.message]
    if finding.remedies:
        lines.append(sentences["remedy"].format(text=finding.remedies[0].text))
    return _escaped("\n".join(lines))


def _escaped(text: str) -> str:
    """Return a text without what Slack would take for a link or a mention, and without control characters."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(char for char in text if char.isprintable() or char == "\n" or char in "\u200d\ufe0f")


def _post(url: str, text: str) -> None:
    body = json.dumps({"text": text}).encode()
    pause = 1.0
    for attempt in range(_ATTEMPTS):
        try:
            _send(url, body)
            return
        except urllib.error.HTTPError as error:
            error.close()
            refused = 400 <= error.code < 500 and error.code not in (408, 429)
            if refused or error.code < 400:
                raise InputError(f"the webhook's server answers {_said(error)}; check its address") from None
            failure, wait = f"it answers {_said(error)}", _asked_to_wait(error, pause)
        except (ValueError, http.client.InvalidURL):  # its text shows the address; trying again is no use
            raise InputError("the webhook's address, or that of the proxy, cannot be used; check both") from None
        except OSError as error:  # no route, no such host, no answer in time
            failure, wait = f"it cannot be reached ({getattr(error, 'reason', error)})", pause
        except http.client.HTTPException as error:  # its text is the server's
            failure, wait = f"it does not answer as a web server does ({type(error).__name__})", pause
        if attempt + 1 < _ATTEMPTS:
            time.sleep(wait)
            pause *= 2
    raise ConnectionError(f"the webhook's server: {failure}")


def _said(error: urllib.error.HTTPError) -> str:
    """Return the code and its usual name: the server's own words may repeat the address."""
    return f"{error.code} {http.client.responses.get(error.code, '')}".strip()


def _send(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "gradmedic"})
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT) as answer:
        answer.read(1024)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An alert goes where it was told to go."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _asked_to_wait(error: urllib.error.HTTPError, pause: float) -> float:
    try:
        return min(max(float(error.headers.get("Retry-After", pause)), pause), 5.0)
    except (TypeError, ValueError):
        return pause
