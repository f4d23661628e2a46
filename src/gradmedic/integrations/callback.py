"""What the callbacks of all trainers have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gradmedic.errors import MEANT_FOR_HOST, InputError
from gradmedic.integrations.attendance import Attendance
from gradmedic.types import Severity

if TYPE_CHECKING:
    from gradmedic.monitor import Monitor

Hook = TypeVar("Hook", bound=Callable[..., Any])


class WatchingCallback:
    """Watches the trainings of one trainer.

    A context manager, for those that hear of no exceptions (see docs/trainers.md): the record is closed when the block
    is left. Copies and pickles carry the arguments, and no run.

    Args:
        record: run folder to create; None keeps the run in memory. A second training gets `<record>-2`, and so on;
            `overwrite=True` replaces what earlier programs or callbacks have left in them.
        stop_on: "info", "warning", "error" or "critical": a finding of that severity or above ends the training the way
            the trainer ends it; None: none does.
        options: further arguments of `gm.watch`: `transform`, `limits`, `every`, `modules`, `rules`, …

    Raises:
        InputError: an argument is not what was expected.
    """

    #: What the record says where a block is left and the trainer has never said that it is done.
    _unended: str | None = "left by the trainer"

    def __init__(self, record: str | Path | None = None, *, stop_on: Severity | None = None, **options: Any) -> None:
        self.record = record
        self.stop_on = stop_on
        self.options = options
        self._attendance = Attendance(record, stop_on, options)
        super().__init__()

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of the training that runs, or ran last; None before the first, and under `gradmedic run`."""
        return self._attendance.monitor

    def close(self, reason: str | None = None) -> None:
        """End the record of a training that was left without the trainer's knowledge; may be called again."""
        self._end(reason)

    def _end(self, reason: str | BaseException | None) -> None:
        self._attendance.end(reason)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end(self._unended if error is None else error)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_attendance"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attendance = Attendance(self.record, self.stop_on, self.options)


def guarded(hook: Hook) -> Hook:
    """Keep our own faults out of the trainer: said once; what a guard or a wrong argument has to say is raised."""

    @functools.wraps(hook)
    def safe(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return hook(self, *args, **kwargs)
        except (*MEANT_FOR_HOST, InputError):
            raise
        except Exception as error:
            self._attendance.failed(error)
            return None

    return cast(Hook, safe)
