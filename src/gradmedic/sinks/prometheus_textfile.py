"""Metrics for node_exporter's textfile collector: for clusters where nothing can reach into the training process."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.metric_state import MetricState
from gradmedic.sinks.prometheus_families import registry_of, require_client

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame


class PrometheusTextfile(BaseSink):
    """Keeps a `.prom` file current and always whole (written beside, then renamed); needs `gradmedic[prometheus]`.

    The file stays when the run ends; `gradmedic_last_step_timestamp_seconds` says how old it is.

    Args:
        path: the file, in the collector's folder; its name must end in `.prom`.
        seconds: least time between two writes, >= 0.
        top_layers: how many parameters have a series of their own (label `layer`), largest gradient first; 0 for none.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.PrometheusTextfile("node/training.prom")
        PrometheusTextfile('node/training.prom')
    """

    def __init__(self, path: str | os.PathLike[str], *, seconds: float = 5.0, top_layers: int = 10) -> None:
        super().__init__()
        if not isinstance(path, str | os.PathLike) or not str(path).endswith(".prom"):
            raise InputError(f"PrometheusTextfile: expected a file whose name ends in .prom, got {path!r}")
        if not seconds >= 0:
            raise InputError(f"PrometheusTextfile: expected seconds of at least 0, got {seconds!r}")
        self.path = Path(path)
        self._seconds = seconds
        self._state = MetricState(top_layers)
        self._written = float("-inf")

    def __repr__(self) -> str:
        return f"PrometheusTextfile({str(self.path)!r})"

    def open(self) -> None:
        """Make the folder."""
        import gradmedic

        require_client()
        self._state.begin(self.run, gradmedic.__version__)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from None

    def write(self, frame: Frame) -> None:
        """Add a step."""
        self._state.add(frame)
        self.holding = True
        if time.monotonic() - self._written >= self._seconds:
            self._save()

    def write_finding(self, finding: Finding) -> None:
        """Count a finding, and show it at once."""
        self._state.add_finding(finding)
        self._save()

    def flush(self) -> None:
        """Write what has come since the file was written."""
        if self.holding:
            self._save()

    def finish(self) -> None:
        """Write the last state."""
        self.flush()

    def _save(self) -> None:
        from prometheus_client import generate_latest

        data = generate_latest(registry_of(self._state))
        # Not *.prom, so that the collector never reads a half of it.
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            beside.write_bytes(data)
            os.replace(beside, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise self._refused(error) from None
        self._written = time.monotonic()
        self.holding = False

    def _refused(self, error: OSError) -> InputError:
        return InputError(f"cannot write {self.path}: {error.strerror or error}; name another place")
