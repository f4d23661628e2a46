"""The watching of one training on behalf of a trainer: begun, ended, and never made twice.

Whoever watches already goes first: `gradmedic run`, a `gm.watch` of the script, or another callback of the same
trainer. An `Attendance` is then a guest: it adds what the trainer knows to that record, and opens none of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.errors import MEANT_FOR_HOST, InputError
from gradmedic.integrations.free_folders import folder_to_replace, free_folder, sole
from gradmedic.integrations.hosts import hosting_monitor, left_behind, made_here, process_monitor, run_watches
from gradmedic.types import SEVERITIES, Severity

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.monitor import Monitor

#: Arguments of `watch` that a trainer settles itself.
_OWN = ("model", "optimizer", "record")
#: A guest asks for findings every so many steps: on a device, asking waits for it.
_GUEST_LOOKS_EVERY = 16
#: So many folders are tried where other processes take one after the other.
_TRIES = 1000


class Attendance:
    """Watches one training after another.

    Args:
        record: run folder to create; None keeps runs in memory. Where it holds a run already, `-2`, `-3` … is added;
            with `overwrite=True` among the options only where that run is our own, or still written.
        stop_on: severity of a finding that ends the training; None: none does.
        options: further arguments of `gm.watch`.
        gentle: nobody asked for this in the script: say what is wrong instead of raising it.

    Attributes:
        monitor: of the training that runs, or ran last, be it another's whose guest we are; None before the first.

    Raises:
        InputError: `options` has something that `gm.watch` does not take, or `stop_on` is no severity.
    """

    def __init__(
        self,
        record: str | Path | None,
        stop_on: Severity | None,
        options: Mapping[str, Any],
        *,
        gentle: bool = False,
    ) -> None:
        _check(stop_on, options)
        self.monitor: Monitor | None = None
        self._record = record
        self._stop_on = stop_on
        self._options = dict(options)
        self._gentle = gentle
        self._open = self._guest = self._failed = False
        self._stop = False
        self._looks = 0
        self._folders: set[str] = set()
        self._resumed: Mapping[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a training is being watched, be it by a monitor of our own or as a guest."""
        return self._open

    def begin(self, model: Any, optimizers: Any = None) -> None:
        """A training begins; one that has not been ended ends now.

        Args:
            model: as for `gm.watch`; None watches whatever this process trains.
            optimizers: as for `gm.watch`.
        """
        self.end("training began anew")
        self._stop, self._looks = False, 0
        if run_watches():
            self._open = self._guest = True
            return
        host = hosting_monitor(model)
        if host is not None:
            self.monitor, self._open, self._guest = host, True, True
            return
        try:
            self.monitor = self._watch(model, optimizers)
            made_here.add(self.monitor)
            self._open, self._guest = True, False
            self._load()
        except MEANT_FOR_HOST:
            raise
        except InputError as error:
            if not self._gentle:
                raise
            self.failed(error)
        except Exception as error:
            self.failed(error)

    def end(self, reason: str | BaseException | None = None) -> None:
        """The training has ended; may be called again.

        Args:
            reason: the exception that ended it, a word for the record, or None when it came to its end.
        """
        if not self._open:
            return
        self._current()
        self._open = False
        if self._guest or self.monitor is None:
            return
        from gradmedic.settings import ending

        self.monitor.close(reason if isinstance(reason, str) else ending(reason))

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Add numbers that the trainer has computed to the last step; what is no number is left out."""
        monitor = self._current()
        numbers = {_metric_name(key): value for key, value in metrics.items() if _is_number(value)}
        if monitor is not None and numbers:
            monitor.log(**numbers)

    def should_stop(self) -> bool:
        """Whether a finding asks for the end of the training; call it once a step."""
        if self._stop_on is None or not self._open:
            return False
        if self._guest:
            self._looks += 1
            monitor = self._current()
            if monitor is not None and self._looks % _GUEST_LOOKS_EVERY == 0:
                self._stop = self._stop or any(map(self._is_grave, monitor.findings))
        return self._stop

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs to go on counting; empty when nothing is watched."""
        monitor = self._current() or (None if self._guest else self.monitor)
        return {} if monitor is None else monitor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, now or as soon as the training begins."""
        self._resumed = state or None
        if self._open:
            self._load()

    def failed(self, error: Exception) -> None:
        """Say, once, that a part of ours has failed; training goes on."""
        if not self._failed:
            self._failed = True
            from gradmedic.ledger import say

            say(f"this training is not watched in full: {str(error) or type(error).__name__}; it goes on")

    def _current(self) -> Monitor | None:
        if self._open and self._guest and self.monitor is None:
            self.monitor = process_monitor()  # `gradmedic run` has one from the first step on
        return self.monitor if self._open else None

    def _load(self) -> None:
        state, self._resumed = self._resumed, None
        if state is None or self._guest or self.monitor is None:
            return
        try:
            self.monitor.load_state_dict(state)
        except MEANT_FOR_HOST:
            raise
        except InputError as error:  # what a file of a checkpoint holds must not end the training
            from gradmedic.ledger import say

            say(f"the checkpoint's state is not taken over, and steps are counted anew: {error}; training goes on")

    def _watch(self, model: Any, optimizers: Any) -> Monitor:
        replace = self._options.get("overwrite") is True
        if replace:
            for monitor in left_behind(model):
                monitor.close("attached anew")
        for _ in range(_TRIES):
            folder = folder_to_replace(self._record, self._folders) if replace else free_folder(self._record)
            with sole(folder, replace=replace) as ours:
                if ours:
                    made = self._watch_into(folder, model, optimizers)
                    self._folders.add(str(folder))
                    return made
        raise InputError(
            f"record: expected a folder for a new run beside {str(self._record)!r}, found none; name another"
        )

    def _watch_into(self, folder: str | Path | None, model: Any, optimizers: Any) -> Monitor:
        from gradmedic import watching

        options = {**self._options, "record": folder, "on_finding": self._found}
        if model is not None:
            return watching.watch(model, optimizers, **options)
        taken = inspect.signature(watching.watch_process).parameters
        unfit = sorted(name for name in self._options if name not in taken)
        if unfit:
            raise InputError(f"{unfit[0]}: not taken where every model of the process is watched; leave it out")
        return watching.watch_process(lazy=False, **options)

    def _found(self, finding: Finding) -> None:
        self._stop = self._stop or self._is_grave(finding)
        theirs = self._options.get("on_finding")
        if theirs is not None:
            theirs(finding)

    def _is_grave(self, finding: Finding) -> bool:
        return self._stop_on is not None and SEVERITIES.index(finding.severity) >= SEVERITIES.index(self._stop_on)


def _check(stop_on: Any, options: Mapping[str, Any]) -> None:
    from gradmedic import watching

    known = [name for name in inspect.signature(watching.watch).parameters if name not in _OWN]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"{unknown[0]}: expected an argument of gm.watch: {', '.join(known)}; check the spelling")
    if stop_on is not None and stop_on not in SEVERITIES:
        raise InputError(f"stop_on: expected one of {', '.join(SEVERITIES)}, or None, got {stop_on!r}")


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, str, bytes)):
        return False
    if hasattr(value, "numel"):
        return bool(value.numel() == 1)
    return isinstance(value, (int, float)) or (hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0)


def _metric_name(key: Any) -> str:
    """Return the name under which a trainer's number is logged: `loss` is ours, and stays the one of `backward()`."""
    name = str(key)
    return "logged_loss" if name == "loss" else name
