"""The one place where watching is put together: hooks -> frames -> ledger (rules, record, sinks)."""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import torch

from gradmedic import torch_hooks
from gradmedic.checks import check_backend
from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.findings import Findings
from gradmedic.diagnosis.given_rules import GivenRules
from gradmedic.errors import InputError, TrainingHalted
from gradmedic.frame import Frame
from gradmedic.isolation import Isolation, part
from gradmedic.ledger import Ledger, Recording, say
from gradmedic.names import unique, variable_name
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.probes.watcher import StepWatcher
from gradmedic.probing.asked import Probing
from gradmedic.record import Run
from gradmedic.roster import Roster
from gradmedic.schedule import Escalation
from gradmedic.schedule import every as make_schedule
from gradmedic.settings import Settings, StepLimit, StoppedByGuard, ending
from gradmedic.shown_as_html import ShownAsHtml
from gradmedic.stats import native_available

_HISTOGRAM_EVERY = 50


class Overhead(NamedTuple):
    """What watching costs: seconds spent in our own code, share of the wall time, how often training was held up.

    `host_syncs` counts where the host waited for a device: for numbers that were asked for before they had arrived
    (`latest`, `findings`, `run`), for an optimizer that cannot skip a step by itself and had to be told, and where a
    device knows no events. A recorded step counts none; nor does the end of the run.
    """

    seconds: float
    share: float
    host_syncs: int


class Monitor(Probing, ShownAsHtml):
    """Watches training until it is closed; made by `gm.watch`.

    A context manager. All its attributes may be read at any time; numbers that still lie on a device are copied when
    they are asked for. A callback (`on_finding`) may read them too, but must not wait for another thread that does: it
    is called while the monitor's lock is held.
    """

    def __init__(self, roster: Roster, optimizers: Mapping[str, Any] | None, settings: Settings) -> None:
        self._settings = settings
        self._rules = GivenRules(settings.rules)
        schedule = Escalation(make_schedule(settings.every))
        backend = check_backend(settings.backend)
        options = WatchOptions(
            schedule=schedule,
            histogram=lambda step: step % _HISTOGRAM_EVERY == 0,
            backend=backend,
            transform=settings.transform,
            cheap=backend in ("auto", "native") and native_available(),
            hands=roster.discovering,
            modules=settings.modules,
            modules_every=settings.modules_every,
            triggered=schedule.recent,
            groups=settings.groups,
            **({} if callable(settings.every) else {"shared": schedule.base}),  # a callable may differ between ranks
        )
        self._ledger = Ledger(settings, roster, schedule)
        self._began = time.perf_counter()
        self._closed = False
        self.steps_seen = 0
        if not roster.discovering:
            self.open_record()
        self._watcher = StepWatcher(roster, optimizers, options, _Output(weakref.ref(self)), self.isolation)
        # One lock for both: whoever closes and whoever steps in another thread would otherwise wait for each other.
        self._lock = self._watcher.lock
        if settings.namespace is not None:
            self._watcher.name_optimizers_by(_namer(settings.namespace))
        torch_hooks.attach(self._watcher)
        self._watcher.on_modules.start(settings.flow)
        # The hooks hold the watcher, the watcher only knows us weakly: this keeps a monitor whose handle was dropped.
        self._watcher.keep_alive = self
        _alive.add(self)
        _install_process_handlers()
        if not roster.discovering:
            self._event({"kind": "facts", "step": 0, "facts": self._watcher.collect_facts().to_json()})
            self._watcher.preflight.watch_inputs()

    @property
    def isolation(self) -> Isolation:
        """Which of our own parts are switched off, and the time that we have taken."""
        return self._ledger.isolation

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close(ending(error))

    def close(self, reason: str = "finished") -> None:
        """Detach everything and end the record; may be called again, also from inside a callback."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            torch_hooks.detach(self._watcher)
            self._watcher.agreement.leave()
            self._watcher.keep_alive = None
            self._ledger.close(reason, before=self._watcher.stop)

    def flush(self) -> None:
        """Write out every step so far, and wait until it is written (10 s at most).

        For what may end without notice, such as a job whose time is up; a run that ends in the usual way needs none,
        `close` does it. What `log` is given afterwards belongs to the next step.

        Example:
            >>> import torch, gradmedic as gm
            >>> with gm.watch(torch.nn.Linear(2, 1)) as monitor:
            ...     monitor.flush()
        """
        recorder = self._hand_over()
        if recorder is not None:
            recorder.flush()  # outside the lock: other threads may step meanwhile

    @part("flush")
    def _hand_over(self) -> Recording | None:
        with self._lock:
            if self._closed:
                return None
            self._ledger.resolve()
            self._ledger.release()
            return self._ledger.recorder

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Watch nothing for a while, with no hook of ours anywhere: for `torch.jit.trace`, `torch.export`."""
        self._watcher.preflight.end(close=True)
        self._watcher.on_modules.stop()
        torch_hooks.detach(self._watcher)
        self._watcher.agreement.leave(for_good=False)
        with self._lock:
            if not self._closed:  # steps that are made now are in no record, nor in its numbers
                self._ledger.event({"kind": "paused"})
        try:
            yield
        finally:
            if not self._closed:
                self._watcher.agreement.come_back()
                torch_hooks.attach(self._watcher)
                self._watcher.on_modules.start(self._settings.flow)

    def log(self, loss: Any = None, **scalars: Any) -> None:
        """Add numbers of your own to a step: the one that is under way, or, right after `optimizer.step()`, that one.

        Args:
            loss: overrides the loss that was read from `backward()`.
            scalars: any numbers or one-element tensors. Tensors on a device are copied with the frame, without a
                synchronisation of their own. While a CUDA graph is captured, nothing is logged.
        """
        if torch_hooks.capturing():  # what is recorded now runs again and again, and nobody would ask for it
            return
        given = {**scalars} if loss is None else {"loss": loss, **scalars}
        numbers = {key: self._number(key, value) for key, value in given.items()}
        self._log({key: number for key, number in numbers.items() if number is not None})

    def _number(self, key: str, value: Any) -> torch.Tensor | float | None:
        """Return a float, a copy of a tensor on a device (its owner may change it), or None for what is no number."""
        try:
            if not isinstance(value, torch.Tensor):
                return float(value)
            value = value.detach()
            if value.numel() == 1 and not value.is_complex():
                return float(value) if value.device.type == "cpu" else value.clone()
            kind = f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
        except (TypeError, ValueError, RuntimeError, OverflowError):
            kind = f"{value!r}"[:200]
        error = InputError(f"log({key}=...): expected a number or a real tensor of one element, got {kind}; reduce it")
        self.isolation.failed(f"log of {key!r}", error)
        return None

    @part("log")
    def _log(self, given: dict[str, torch.Tensor | float]) -> None:
        with self._lock:
            self._ledger.log(given, under_way=self._watcher.under_way)

    def observe(self) -> None:
        """Make the end of a step known in a loop without a torch optimizer; call it once the weights have changed."""
        self._watcher.observe()

    @property
    def latest(self) -> Frame | None:
        """The last step's frame; None before the first."""
        with self._lock:
            self._ledger.resolve()
            return self._ledger.latest

    @property
    def run(self) -> Run:
        """The record so far."""
        with self._lock:
            self._ledger.resolve()
            self._ledger.release()
            return self._ledger.recorder.run

    @property
    def findings(self) -> Findings:
        """What has been found so far, most likely root cause first; cheap, and current after each step."""
        with self._lock:
            self._ledger.resolve()
            return Findings(self._ledger.engine.findings())

    def diagnose(self) -> Findings:
        """Judge the whole record so far by the rules and limits of this monitor: most likely root cause first.

        Raises:
            InputError: a rule object that was given to `watch` cannot be copied.
        """
        asked = self._settings
        return diagnose(self.run, lang=asked.lang, limits=asked.limits, rules=self._rules.fresh())

    @property
    def overhead(self) -> Overhead:
        """What watching has cost so far."""
        elapsed = time.perf_counter() - self._began
        seconds = self.isolation.seconds
        return Overhead(seconds, seconds / max(elapsed, 1e-9), self._ledger.host_syncs + self._watcher.host_syncs)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on: step counters, clip counts and the transform's state, by name."""
        return self._watcher.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another monitor stopped.

        Raises:
            InputError: if this is not what `state_dict` returned.
        """
        self._watcher.load_state_dict(state)

    def open_record(self) -> None:
        """Make the run folder now, instead of at the first step."""
        _ = self._ledger.recorder

    def _event(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._ledger.event(event)

    def _pending(self, pending: PendingFrame) -> None:
        with self._lock:
            self.steps_seen += 1
            self._ledger.pending(pending)
            limit = self._settings.stop_after
        if limit is not None and self.steps_seen >= limit:
            raise StepLimit(limit)

    def _halted(self, step: int, reason: str, *, stop: bool) -> None:
        """A guard ends the training; the record has everything, and the last frames in full."""
        with self._lock:
            self._ledger.halted(step, reason)
        if not stop:
            raise TrainingHalted(
                f"step {step}: {reason}; the step was not made. To go on, resume from a checkpoint before it, with a "
                "lower learning rate or without the batch that caused it"
            )
        say(f"training is stopped at step {step}: {reason}")
        self.close(f"stopped: {reason}")
        raise StoppedByGuard(reason)

    def _begin_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the lock, and open frames are the parent's."""
        self._lock = self._watcher.renew_lock()
        self._ledger.forget_parent()


class _Output:
    """Hands what the watcher says to the monitor, which it does not keep alive."""

    def __init__(self, monitor: weakref.ref[Monitor]) -> None:
        self._monitor = monitor

    def event(self, event: dict[str, Any]) -> None:
        monitor = self._monitor()
        if monitor is not None:
            monitor._event(event)

    def pending(self, frame: PendingFrame) -> None:
        monitor = self._monitor()
        if monitor is not None:
            monitor._pending(frame)

    def gone(self) -> None:
        monitor = self._monitor()
        if monitor is not None:
            monitor.close("the watched model is gone")

    def halted(self, step: int, reason: str, *, stop: bool) -> None:
        monitor = self._monitor()
        if monitor is not None:
            monitor._halted(step, reason, stop=stop)


_alive: weakref.WeakSet[Monitor] = weakref.WeakSet()
_handlers_installed = False


def _install_process_handlers() -> None:
    """Close what is open at exit, and give a forked child locks of its own; installed with the first monitor."""
    global _handlers_installed
    if _handlers_installed:
        return
    _handlers_installed = True
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_locks)


def _close_all() -> None:
    # Python has put the exception that ended the program there; in an interactive session it is any earlier one.
    last = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for monitor in list(_alive):
        monitor.close("interpreter exit" if last is None else ending(last))


def _renew_locks() -> None:
    for monitor in list(_alive):
        monitor._begin_in_child()


def _namer(namespace: Callable[[], Mapping[str, Any]]) -> Callable[[Any, Sequence[str]], str]:
    return lambda optimizer, taken: unique(variable_name(optimizer, namespace()) or "optimizer", taken)
