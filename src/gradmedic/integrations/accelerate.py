"""Accelerate: a tracker for `Accelerator(log_with=…)`.

`GradMedicTracker` is made from `accelerate.tracking.GeneralTracker` when it is first asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.integrations.callback import WatchingCallback, guarded
from gradmedic.integrations.libraries import library_class, no_such_name, require
from gradmedic.types import Severity

MINIMUM = "1.0"
_NAME = "GradMedicTracker"


class AccelerateHooks(WatchingCallback):
    """Watches what a program trains with Accelerate; see `WatchingCallback` for the arguments.

    Watching begins with `accelerator.init_trackers(…)`, of every optimizer of the process, prepared or not, and ends
    with `accelerator.end_training()`. What is given to `accelerator.log` is logged with the last step.

    Example:
        >>> from gradmedic.integrations.accelerate import GradMedicTracker  # doctest: +SKIP
        >>> accelerator = Accelerator(log_with=GradMedicTracker("runs/exp1"))  # doctest: +SKIP
        >>> accelerator.init_trackers("exp1")  # doctest: +SKIP
    """

    name = "gradmedic"
    requires_logging_directory = False
    #: Gradients are measured on every rank; where they are shared out, all ranks have to take part.
    main_process_only = False

    def __init__(self, run_name: str | Path | None = None, *, stop_on: Severity | None = None, **options: Any) -> None:
        super().__init__(run_name, stop_on=stop_on, **options)

    @property
    def tracker(self) -> Any:
        """The monitor, for `accelerator.get_tracker("gradmedic", unwrap=True)`."""
        return self.monitor

    @guarded
    def start(self) -> None:
        """Trackers are initialised."""
        self._attendance.begin(None)

    @guarded
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The script's configuration: the optimizer's own settings are in the record already."""

    @guarded
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Numbers of the script."""
        self._attendance.log(values)

    @guarded
    def should_stop(self) -> bool:
        """Whether a finding at or above `stop_on` was made; ask once a step, the loop is yours."""
        return self._attendance.should_stop()

    @guarded
    def finish(self) -> None:
        """Training has come to its end."""
        self._attendance.end()


if TYPE_CHECKING:
    GradMedicTracker = AccelerateHooks


def __getattr__(name: str) -> Any:
    if name == _NAME:
        library = require("accelerate.tracking", package="accelerate", extra="accelerate", minimum=MINIMUM)
        return library_class(globals(), name, AccelerateHooks, library.GeneralTracker)
    raise no_such_name(__name__, name)
