"""What the server of a live page prints of requests that are not its own: nothing, or they would fill a terminal."""

import logging

import pytest

from gradmedic.serve.server import _hush


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Invalid HTTP request received.", False),
        ("Unsupported upgrade request.", False),
        ("No supported WebSocket library detected. Please use ...", False),
        ("Exception in ASGI application", True),
    ],
)
def test_requests_in_other_protocols_are_not_printed(message, shown):
    _hush()
    _hush()
    log = logging.getLogger("uvicorn.error")
    record = log.makeRecord(log.name, logging.WARNING, __file__, 1, message, (), None)
    assert bool(log.filter(record)) is shown
    assert len(log.filters) == len({id(each) for each in log.filters})
