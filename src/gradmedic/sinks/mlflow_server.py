"""A run in MLflow, on a server or in a database file; numbers are sent in batches."""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink, RunLabel, require
from gradmedic.sinks.metric_paths import MetricPaths, cleaner
from gradmedic.sinks.metric_table import PREFIX
from gradmedic.sinks.tensorboard_events import check_layers

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

LEAST = "2.9"
#: MLflow takes 1,000 metrics and 1 MB in one request; names may be 250 characters long.
_BATCH = 500
_MOST_PENDING = 20_000
_SECONDS = 1.0
_REACH_SECONDS = 5.0
_PART = 100


class MLflow(BaseSink):
    """Logs metrics `gradmedic/…` step by step, and findings as tags; needs `gradmedic[mlflow]`.

    With a uri or an experiment a run of its own is made, and the process' own settings of MLflow are left alone.
    Without either, the run that is active in the training thread is joined, if there is one. While the server is down
    training goes on; what does not fit into memory until it is back (20,000 numbers) is lost.

    Args:
        uri: of the tracking server: "http://host:5000", "sqlite:///mlflow.db"; None: MLFLOW_TRACKING_URI, else
            MLflow's default.
        experiment: where a run is made, itself made when missing; None: MLFLOW_EXPERIMENT_NAME, else MLflow's default.
        layers: how many layers have a norm of their own, in the order of the model.
        layers_every: every how many steps these are logged.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.MLflow("sqlite:///mlflow.db", "digits")
        MLflow(experiment='digits')
    """

    keeps_trying = True
    patience = 30.0

    def __init__(
        self,
        uri: str | None = None,
        experiment: str | None = None,
        *,
        layers: int = 100,
        layers_every: int = 10,
    ) -> None:
        super().__init__()
        for name, value in (("uri", uri), ("experiment", experiment)):
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InputError(f"MLflow: expected {name} to be a text, got {value!r}")
        check_layers("MLflow", layers, layers_every)
        self._uri, self._experiment = uri, experiment
        self.secrets = tuple(part for part in (_password(uri),) if part)
        # `\w` of MLflow's own rule takes letters of any script.
        self._paths = MetricPaths(cleaner(r"[^\w.\- ]", _PART), layers, layers_every)
        self._run_id: str | None = None
        self._owns = True
        self._address = ""
        self._client: Any = None
        self._metric: Any = None
        self._pending: list[Any] = []
        self._sent_at = float("-inf")

    def __repr__(self) -> str:
        return f"MLflow(experiment={self._experiment!r})"

    def begin(self, run: RunLabel) -> None:
        """See whether a run is active; MLflow tells each thread of its own runs only."""
        super().begin(run)
        mlflow = sys.modules.get("mlflow")
        if self._uri is None and self._experiment is None and mlflow is not None:
            active = mlflow.active_run()
            if active is not None:
                self._run_id, self._owns = active.info.run_id, False

    def open(self) -> None:
        """Reach the server, and make a run."""
        mlflow = require("mlflow", extra="mlflow", package=_package(), least=LEAST)
        from mlflow.entities import Metric

        self._metric = Metric
        self._address = self._uri or mlflow.get_tracking_uri()
        _reach(self._address)
        self._client = mlflow.MlflowClient(tracking_uri=self._uri)
        if self._run_id is None:
            experiment = self._experiment_id()
            self._run_id = self._client.create_run(experiment, run_name=self.run.name).info.run_id

    def write(self, frame: Frame) -> None:
        """Add a step to what is sent about every second."""
        at = int(frame.time * 1000)
        self._pending += [self._metric(path, value, at, frame.step) for path, value in self._paths.of(frame).items()]
        self.holding = True
        if time.monotonic() - self._sent_at >= _SECONDS or len(self._pending) >= _BATCH:
            self._send()

    def write_finding(self, finding: Finding) -> None:
        """Set a tag."""
        text = f"{finding.severity}, step {finding.step}: {finding.message}"
        self._client.set_tag(self._run_id, f"{PREFIX}.finding.{finding.code}", text[:500])

    def flush(self) -> None:
        """Send the rest."""
        self._send()

    def finish(self) -> None:
        """Send the rest, and end the run that was made; one that was joined is the script's to end."""
        try:
            self._send()
        finally:
            if self._owns and self._run_id is not None:
                self._client.set_terminated(self._run_id, "FINISHED")
                self._run_id = None  # used again, it makes another run

    def _send(self) -> None:
        self._sent_at = time.monotonic()
        if self._pending:
            _reach(self._address)
        while self._pending:
            # What is not accepted stays, and is sent again once the server is back.
            self._pending = self._pending[-_MOST_PENDING:]
            self._client.log_batch(self._run_id, metrics=self._pending[:_BATCH])
            del self._pending[:_BATCH]
        self.holding = False

    def _experiment_id(self) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return "0"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))


def _package() -> str:
    """Return which of MLflow's two packages is installed; the small one suffices."""
    from gradmedic.sinks.base import version_of

    return "mlflow" if version_of("mlflow") is not None else "mlflow-skinny"


def _reach(uri: str) -> None:
    """Raise ConnectionError at once where nobody listens: MLflow itself would try for minutes before it says so."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.scheme in urllib.request.getproxies():
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"the server at {parts.hostname}:{port} cannot be reached ({error})") from None


def _password(uri: str | None) -> str | None:
    try:
        return None if uri is None else urlsplit(uri).password
    except ValueError:
        return None
