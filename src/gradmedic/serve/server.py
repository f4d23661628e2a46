"""The server: a socket on the loopback interface, and what runs behind it until Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradmedic.errors import InputError
from gradmedic.report.needs import needed
from gradmedic.serve.app import make_app
from gradmedic.serve.catalogue import Catalogue

ADDRESS = "127.0.0.1"
PORT = 8321
_TRIED_PORTS = 64


class Server:
    """Serves runs on this machine until it is stopped.

    Args:
        paths: run folders, or folders of run folders; they need not exist yet.
        port: 0 for any that is free.
        lang: "en" or "zh", in which the page opens.

    Raises:
        InputError: a path is a file, the port is taken or not to be had, or starlette, uvicorn or plotly is not
            installed.

    Example:
        >>> with Server([Path("runs")], port=0) as server:  # doctest: +SKIP
        ...     print(server.url)
        http://127.0.0.1:40123/
    """

    def __init__(self, paths: Sequence[str | Path], *, port: int = PORT, lang: str = "en") -> None:
        for path in paths:
            if Path(path).exists() and not Path(path).is_dir():
                raise InputError(f"{str(path)!r} is a file; serve expects run folders, or a folder that holds several")
        self.catalogue = Catalogue([Path(path) for path in paths], lang)
        app = make_app(self.catalogue, lang)
        uvicorn = needed("uvicorn", "serving needs uvicorn", "serve")
        _hush()
        self._socket = bind(port)
        self._socket.listen(128)  # who asks before the loop runs waits, and is not refused
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server: Any = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{ADDRESS}:{self._socket.getsockname()[1]}/"

    def run(self) -> None:
        """Serve until Ctrl-C, which ends it quietly."""
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def __enter__(self) -> Server:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10.0)
        self.close()

    def close(self) -> None:
        """Give back the socket."""
        self._socket.close()


def _hush() -> None:
    """Keep what is no HTTP from printing a line for each attempt: it is answered with 400, and that is enough."""
    log = logging.getLogger("uvicorn.error")
    if not any(isinstance(each, _Malformed) for each in log.filters):
        log.addFilter(_Malformed())


#: What uvicorn says of each request that is no HTTP, or asks for another protocol.
_UNWANTED = ("Invalid HTTP request", "Unsupported upgrade request", "No supported WebSocket library")


class _Malformed(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_UNWANTED)


def bind(port: int) -> socket.socket:
    """Return a socket on the loopback interface.

    Raises:
        InputError: the port is taken (the message names one that is free) or may not be used.
    """
    if not 0 <= port < 65536:
        raise InputError(f"port must be between 0 and 65535; got {port}")
    try:
        return _bound(port)
    except PermissionError as error:
        raise InputError(f"port {port} may not be used by this user; try --port {PORT}") from error
    except OSError as error:
        free = next((other for other in range(port + 1, min(port + _TRIED_PORTS, 65536)) if _is_free(other)), 0)
        advice = f"--port {free}" if free else "--port 0, which takes any that is free"
        raise InputError(f"port {port} is taken, perhaps by another gradmedic serve; try {advice}") from error


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port that was served a moment ago can be had again at once; one that is being served cannot.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((ADDRESS, port))
    except OSError:
        made.close()
        raise
    return made


def _is_free(port: int) -> bool:
    try:
        _bound(port).close()
    except OSError:
        return False
    return True


def open_later(url: str, opener: Callable[[str], Any] | None = None, seconds: float = 0.5) -> None:
    """Open the page in the user's browser as soon as the server answers."""
    if opener is None:
        opener = importlib.import_module("webbrowser").open
    timer = threading.Timer(seconds, opener, [url])
    timer.daemon = True
    timer.start()
