"""A run in Weights & Biases: one of its own, or the script's, whose step counter is left alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink, RunLabel, require
from gradmedic.sinks.metric_paths import MetricPaths, cleaner
from gradmedic.sinks.metric_table import PREFIX
from gradmedic.sinks.tensorboard_events import check_layers
from gradmedic.types import HISTOGRAM_FIRST_EXPONENT

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

#: The first with `reinit="create_new"`.
LEAST = "0.19.10"
_STEP = f"{PREFIX}/step"


class Wandb(BaseSink):
    """Logs under `gradmedic/…`, over an axis of its own, `gradmedic/step`; needs `gradmedic[wandb]`.

    With a project, or where the script has no run, a run of its own is made, which the script's `wandb.run` and
    `wandb.log` never meet. Otherwise the script's run is joined: W&B allows one step counter for a run, and that is
    the script's, so each row that the script logs also carries the numbers of the last step.

    Magnitudes become histograms over log2, from counts and edges. `WANDB_MODE`, `WANDB_API_KEY` … hold as ever.

    Args:
        project: where a run of its own is made; None joins the script's run where there is one.
        run: the name of the run that is made, or a run to join.
        layers: how many layers have a norm and a histogram of their own, in the order of the model.
        layers_every: every how many steps these are logged.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.Wandb(project="digits")
        Wandb(project='digits')
    """

    patience = 30.0

    def __init__(
        self, project: str | None = None, run: Any = None, *, layers: int = 100, layers_every: int = 10
    ) -> None:
        super().__init__()
        if project is not None and (not isinstance(project, str) or not project.strip()):
            raise InputError(f"Wandb: expected the name of a project, got {project!r}")
        if run is not None and not isinstance(run, str) and not callable(getattr(run, "log", None)):
            raise InputError(f"Wandb: expected run to be a name or a run of wandb, got {run!r}")
        check_layers("Wandb", layers, layers_every)
        self._project = project
        self._name = run if isinstance(run, str) else None
        self._joined = None if run is None or isinstance(run, str) else run
        self._target: Any = self._joined
        self._paths = MetricPaths(cleaner(r"[^\w.\- ]", 200), layers, layers_every)
        self._wandb: Any = None

    def __repr__(self) -> str:
        return f"Wandb(project={self._project!r})"

    def begin(self, run: RunLabel) -> None:
        """See whether the script has a run."""
        super().begin(run)
        wandb = sys.modules.get("wandb")
        if self._joined is None and self._project is None and self._name is None and wandb is not None:
            self._joined = getattr(wandb, "run", None)

    def open(self) -> None:
        """Make the run, or join the script's."""
        self._wandb = require("wandb", extra="wandb", package="wandb", least=LEAST)
        self._target = self._joined if self._joined is not None else self._make()
        self._target.define_metric(_STEP, hidden=True)
        self._target.define_metric(f"{PREFIX}/*", step_metric=_STEP)

    def write(self, frame: Frame) -> None:
        """Log a step."""
        row: dict[str, Any] = {_STEP: frame.step, **self._paths.of(frame)}
        self._add_histograms(frame, row)
        self._log(row)

    def write_finding(self, finding: Finding) -> None:
        """Put a finding into the run's summary, where it stays in sight."""
        text = f"{finding.severity}, step {finding.step}: {finding.message}"
        self._target.summary[f"{PREFIX}/finding/{finding.code}"] = text[:2000]

    def finish(self) -> None:
        """End the run that was made; one that was joined is the script's to end."""
        if self._joined is None and self._target is not None:
            self._target.finish()

    def _make(self) -> Any:
        _refuse_to_ask(self._wandb)
        return self._wandb.init(
            project=self._project,
            name=self._name or self.run.name,
            job_type=PREFIX,
            reinit="create_new",
            save_code=False,
            # The console is the script's; what W&B would put in its place outlives the run.
            settings=self._wandb.Settings(console="off", quiet=True),
        )

    def _log(self, row: dict[str, Any]) -> None:
        if self._joined is None:
            self._target.log(row)
        else:
            self._target.log(row, commit=False)

    def _add_histograms(self, frame: Frame, row: dict[str, Any]) -> None:
        table = frame.tensors
        if table.log2_hist is None:
            return
        prefix, status = self._paths.prefix(frame), table.column("status").tolist()
        for at, name in enumerate(table.names):
            path = self._paths.layer(name)
            if path is None:
                return
            counts = table.log2_hist[at].tolist()
            filled = [bin_ for bin_, count in enumerate(counts) if count]
            if status[at] != 0 or not filled:  # no gradient, or none but zeros and what is not finite
                continue
            first, last = filled[0], filled[-1] + 1
            edges = [float(bin_ + HISTOGRAM_FIRST_EXPONENT) for bin_ in range(first, last + 1)]
            histogram = self._wandb.Histogram(np_histogram=(counts[first:last], edges))
            row[f"{prefix}/log2_grad/{path}"] = histogram


def _refuse_to_ask(wandb: Any) -> None:
    """Raise InputError where W&B would ask for a key at the terminal: the terminal is the script's."""
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared", "run"):
        return
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return
    try:
        asks = sys.stdin is not None and sys.stdin.isatty() and not wandb.api.api_key
        offline = wandb.setup().settings.mode in ("offline", "disabled", "dryrun")
    except Exception:  # internals that this version does not have: let it do what it does
        return
    if asks and not offline:
        raise InputError("not logged in: run `wandb login` first, set WANDB_API_KEY, or WANDB_MODE=offline")
