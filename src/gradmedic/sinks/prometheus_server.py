"""Metrics for Prometheus to scrape, from a small HTTP server in the training process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.metric_state import MetricState
from gradmedic.sinks.prometheus_families import registry_of, require_client
from gradmedic.sinks.sink_checks import check_count

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

DEFAULT_PORT = 9105


class Prometheus(BaseSink):
    """Serves the metrics of docs/sinks.md at `http://HOST:PORT/metrics`; needs `gradmedic[prometheus]`.

    Totals and the few largest layers only, never a series for every parameter. The registry is its own: metrics of
    the script, and `PROMETHEUS_MULTIPROC_DIR`, are left alone.

    Args:
        port: 1 to 65535; 0 for any that is free, then in `port` once the first frame has come.
        host: the address to listen at; "0.0.0.0" lets other machines scrape, who then read your numbers.
        top_layers: how many parameters have a series of their own (label `layer`), largest gradient first; 0 for none.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.Prometheus(port=9105)
        Prometheus(port=9105, host='127.0.0.1')
    """

    def __init__(self, port: int = DEFAULT_PORT, host: str = "127.0.0.1", *, top_layers: int = 10) -> None:
        super().__init__()
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
            raise InputError(f"Prometheus: expected a port from 0 to 65535, got {port!r}")
        if not isinstance(host, str) or not host.strip():
            raise InputError(f'Prometheus: expected a host such as "127.0.0.1", got {host!r}')
        check_count(top_layers, "Prometheus: top_layers", 0)
        self.port = port
        self.host = host
        self._state = MetricState(top_layers)
        self._server: Any = None

    def __repr__(self) -> str:
        return f"Prometheus(port={self.port}, host={self.host!r})"

    def open(self) -> None:
        """Start the server."""
        import gradmedic

        require_client()
        from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

        self._state.begin(self.run, gradmedic.__version__)
        self._server = _serve(ThreadingWSGIServer, make_wsgi_app(registry_of(self._state)), self.host, self.port)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="gradmedic metrics", daemon=True).start()

    def write(self, frame: Frame) -> None:
        """Add a step."""
        self._state.add(frame)

    def write_finding(self, finding: Finding) -> None:
        """Count a finding."""
        self._state.add_finding(finding)

    def finish(self) -> None:
        """Stop the server, and free the port."""
        self._server.shutdown()
        self._server.server_close()


def _serve(base: Any, app: Any, host: str, port: int) -> Any:
    import socket
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Server(base):  # type: ignore[misc]
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_: Any) -> None:
            """A scraper that hangs up is nobody's fault; the default prints a traceback into the training's log."""

    class Silent(WSGIRequestHandler):
        timeout = 10

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    try:
        return make_server(host, port, app, Server, handler_class=Silent)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen at {host}:{port}: {why}; choose another port (0 for any that is free) or address"
        ) from None
