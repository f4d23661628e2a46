"""The one place where watching is put together: hooks -> frames -> record, rules, sinks."""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from gradmedic import torch_hooks
from gradmedic.checks import check_backend, check_limits, check_optimizers, check_trainable
from gradmedic.clip.base import Transform
from gradmedic.diagnosis import Engine, Finding, diagnose
from gradmedic.errors import InputError
from gradmedic.frame import Frame
from gradmedic.isolation import Isolation, part
from gradmedic.names import unique, unwrap, variable_name
from gradmedic.origins import origin_from_gradients
from gradmedic.probes.pending import Parcel, PendingFrame
from gradmedic.probes.watcher import StepWatcher, WatchOptions
from gradmedic.record import MemoryRecorder, Recorder, Run
from gradmedic.roster import Roster
from gradmedic.run_meta import describe_run
from gradmedic.schedule import Escalation, StepSchedule
from gradmedic.schedule import every as make_schedule
from gradmedic.stats import native_available
from gradmedic.types import Sink

_BACKLOG = 64
_HISTOGRAM_EVERY = 50
_SERIOUS = ("error", "critical")


class StepLimit(SystemExit):
    """The number of optimizer steps that the user asked for has been made; exits with code 0."""

    def __init__(self, steps: int) -> None:
        super().__init__(0)
        self.steps = steps


class Overhead(NamedTuple):
    """What watching costs: seconds spent in our own code, share of the wall time, copies from a device."""

    seconds: float
    share: float
    host_syncs: int


class _Recording(Protocol):
    """What recorders offer; see `gradmedic.record`."""

    def put(self, frame: Frame, *, keep: bool) -> None: ...

    def event(self, event: Mapping[str, Any]) -> None: ...

    def dump_flight(self) -> None: ...

    def protect(self, step: int) -> None: ...

    def close(self, reason: str = "finished") -> None: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def run(self) -> Run: ...


@dataclass(slots=True)
class Settings:
    """How a monitor works; `watch` and `watch_process` fill it in."""

    record: str | Path | None = None
    every: int | StepSchedule = 1
    transform: Transform | None = None
    limits: Any = None
    sinks: Sequence[Sink] = ()
    rules: Any = "default"
    budget: str | int = "256MB"
    on_finding: Callable[[Finding], None] | None = None
    backend: str = "auto"
    strict: bool = False
    lang: str = "en"
    stop_after: int | None = None
    join: bool = False
    overwrite: bool = False
    namespace: Callable[[], Mapping[str, Any]] | None = None


@dataclass(slots=True)
class _Held:
    """The last frame: it may still gain what the user logs for it."""

    frame: Frame
    keep: bool
    logged: dict[str, torch.Tensor] = field(default_factory=dict)


class Monitor:
    """Watches training until it is closed; made by `gm.watch`.

    A context manager. All its attributes may be read at any time; numbers that still lie on a device are copied when
    they are asked for.
    """

    def __init__(self, roster: Roster, optimizers: Mapping[str, Any] | None, settings: Settings) -> None:
        self._settings = settings
        self.isolation = Isolation(settings.strict, self._report)
        self._schedule = Escalation(make_schedule(settings.every))
        backend = check_backend(settings.backend)
        options = WatchOptions(
            schedule=self._schedule,
            histogram=lambda step: step % _HISTOGRAM_EVERY == 0,
            backend=backend,
            transform=settings.transform,
            cheap=backend in ("auto", "native") and native_available(),
            hands=roster.discovering,
        )
        self._on_device = backend == "torch"
        self._engine = Engine(rules=settings.rules, limits=settings.limits, lang=settings.lang, strict=settings.strict)
        self._rule_errors = 0
        self._sinks: dict[str, Sink] = {}
        for sink in settings.sinks:
            self._sinks[unique(f"sink {type(sink).__name__}", self._sinks)] = sink
        self._roster = roster
        self._recorder: _Recording | None = None
        self._backlog: list[PendingFrame] = []
        self._held: list[_Held] = []
        self._logged: dict[str, Any] = {}
        self._latest: Frame | None = None
        self._origin_told = False
        self._problem_told = False
        self._host_syncs = 0
        self._began = time.perf_counter()
        self._spent = 0.0
        self._closed = False
        self._resolving = False
        self._close_reason: str | None = None
        self.steps_seen = 0
        if not roster.discovering:
            self._open_recorder()
        self._watcher = StepWatcher(roster, optimizers, options, _Output(weakref.ref(self)), self.isolation)
        # One lock for both: whoever closes and whoever steps in another thread would otherwise wait for each other.
        self._lock = self._watcher.lock
        if settings.namespace is not None:
            self._watcher.name_optimizers_by(_namer(settings.namespace))
        torch_hooks.attach(self._watcher)
        # The hooks hold the watcher, the watcher only knows us weakly: this keeps a monitor whose handle was dropped.
        self._watcher.keep_alive = self
        _alive.add(self)
        _install_process_handlers()
        if not roster.discovering:
            self._event({"kind": "facts", "step": 0, "facts": self._watcher.collect_facts().to_json()})
            self._watcher.preflight.watch_inputs()

    # -- what users call -------------------------------------------------------------------------------------------

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close("finished" if kind is None else f"{kind.__name__}: {error}")

    def close(self, reason: str = "finished") -> None:
        """Detach everything and end the record; may be called again, also from inside a callback."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            torch_hooks.detach(self._watcher)
            self._watcher.keep_alive = None
            if self._resolving:  # called from a callback: the frames at hand come first
                self._close_reason = reason
            else:
                self._finish(reason)

    def _finish(self, reason: str) -> None:
        self._end()
        if self._recorder is not None:
            self._recorder.close(reason)
        for name, sink in self._sinks.items():
            self._to_sink(name, sink.close)

    @part("end")
    def _end(self) -> None:
        self._watcher.stop()
        self._resolve()
        self._release()
        for finding in self._engine.finish():
            self._found(finding)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Watch nothing for a while, with no hook of ours anywhere: for `torch.jit.trace`, `torch.export`."""
        self._watcher.preflight.end(close=True)
        torch_hooks.detach(self._watcher)
        try:
            yield
        finally:
            if not self._closed:
                torch_hooks.attach(self._watcher)

    def log(self, loss: Any = None, **scalars: Any) -> None:
        """Add numbers of your own to a step: the one that is under way, or, right after `optimizer.step()`, that one.

        Args:
            loss: overrides the loss that was read from `backward()`.
            scalars: any numbers or one-element tensors. Tensors on a device are copied with the frame, without a
                synchronisation of their own.
        """
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
        except (TypeError, ValueError, RuntimeError):
            kind = f"{value!r}"[:200]
        error = InputError(f"log({key}=...): expected a number or a real tensor of one element, got {kind}; reduce it")
        self.isolation.failed(f"log of {key!r}", error)
        return None

    @part("log")
    def _log(self, given: dict[str, torch.Tensor | float]) -> None:
        with self._lock:
            if not self._held or self._watcher.under_way:
                self._logged.update(given)
                return
            held = self._held[-1]
            for key, value in given.items():
                if isinstance(value, torch.Tensor):
                    held.logged[key] = value
                else:
                    _log_into(held.frame, key, value)

    def observe(self) -> None:
        """Make the end of a step known in a loop without a torch optimizer; call it once the weights have changed."""
        self._watcher.observe()

    @property
    def latest(self) -> Frame | None:
        """The last step's frame; None before the first."""
        with self._lock:
            self._resolve()
            return self._latest

    @property
    def run(self) -> Run:
        """The record so far."""
        with self._lock:
            self._resolve()
            self._release()
            return self._open_recorder().run

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far, most likely root cause first; cheap, and current after each step."""
        with self._lock:
            self._resolve()
            return self._engine.findings()

    def diagnose(self) -> list[Finding]:
        """Judge the whole record so far, as `gradmedic diagnose` would: most likely root cause first."""
        return diagnose(self.run, lang=self._settings.lang, limits=self._settings.limits)

    @property
    def overhead(self) -> Overhead:
        """What watching has cost so far."""
        elapsed = time.perf_counter() - self._began
        return Overhead(self.isolation.seconds, self.isolation.seconds / max(elapsed, 1e-9), self._host_syncs)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on: step counters, clip counts and the transform's state, by name."""
        return self._watcher.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another monitor stopped.

        Raises:
            InputError: if this is not what `state_dict` returned.
        """
        self._watcher.load_state_dict(state)

    # -- what the watcher tells ---------------------------------------------------------------------------------------

    def _event(self, event: dict[str, Any]) -> None:
        with self._lock:
            event.setdefault("time", time.time())
            self._origin_told |= event["kind"] == "origin"
            self._engine.on_event(event)
            self._open_recorder().event(event)

    def _pending(self, pending: PendingFrame) -> None:
        with self._lock:
            self.steps_seen += 1
            self._open_recorder()
            self._release()
            self._take_logged(pending)
            pending.frame.overhead_seconds = self.isolation.seconds - self._spent
            self._spent = self.isolation.seconds
            self._backlog.append(pending)
            if not self._waits_on_device(pending) or pending.keep or len(self._backlog) >= _BACKLOG:
                self._resolve()
            limit = self._settings.stop_after
        if limit is not None and self.steps_seen >= limit:
            raise StepLimit(limit)

    def _waits_on_device(self, pending: PendingFrame) -> bool:
        return self._on_device or any(reading.norm.device.type != "cpu" for reading, _ in pending.readings)

    def _take_logged(self, pending: PendingFrame) -> None:
        for key, value in self._logged.items():
            if key == "loss":
                pending.loss = torch.as_tensor(value, dtype=torch.float64)
            elif isinstance(value, torch.Tensor):
                pending.logged[key] = value
            else:
                pending.frame.logged = {**pending.frame.logged, key: value}
        self._logged.clear()

    def _resolve(self) -> None:
        """Bring to the host what still lies on a device, in one copy, and judge it."""
        waiting = [held for held in self._held if held.logged]
        if not self._backlog and not waiting:
            return
        parcel = Parcel()
        pending, self._backlog = self._backlog, []
        finishers = [each.pack(parcel) for each in pending]
        places = [(held, {key: parcel.add(value) for key, value in held.logged.items()}) for held in waiting]
        self._host_syncs += parcel.send()
        for held, entries in places:
            for key, place in entries.items():
                _log_into(held.frame, key, parcel.number(place))
            held.logged.clear()
        self._resolving = True
        try:
            for each, finish in zip(pending, finishers, strict=True):
                self._resolved(finish(), each.keep)
        finally:
            self._resolving = False
        if self._close_reason is not None:
            reason, self._close_reason = self._close_reason, None
            self._finish(reason)

    def _resolved(self, frame: Frame, keep: bool) -> None:
        self._latest = frame
        self._tell_origin(frame)
        if frame.nonfinite and not frame.skipped:
            self._schedule.trigger(frame.step)
            self._open_recorder().dump_flight()
        self._judge(frame)
        self._held.append(_Held(frame, keep or self._schedule.escalated(frame.step)))
        for name, sink in self._sinks.items():
            if name not in self.isolation.off:
                self._to_sink(name, sink.emit, frame)

    @part("origin")
    def _tell_origin(self, frame: Frame) -> None:
        if self._origin_told or frame.skipped or not frame.nonfinite:
            return
        facts = self._engine.facts
        order = {} if facts is None else {name: fact.order for name, fact in facts.parameters.items()}
        place = {"step": frame.step, "optimizer": frame.optimizer, "time": frame.time}
        self._event({**origin_from_gradients(frame, order), **place})

    @part("diagnosis")
    def _judge(self, frame: Frame) -> None:
        for finding in self._engine.on_frame(frame):
            self._found(finding)
        for message in self._engine.errors[self._rule_errors :]:
            self._open_recorder().event({"kind": "error", "part": "rule", "message": message})
        self._rule_errors = len(self._engine.errors)

    def _found(self, finding: Finding) -> None:
        recorder = self._open_recorder()
        recorder.event({"kind": "finding", "step": finding.step, "finding": finding.to_json()})
        if finding.severity != "info":
            recorder.protect(finding.step)
            recorder.dump_flight()
            if finding.severity in _SERIOUS:
                self._schedule.trigger(finding.step)
        if finding.code == "GM412":
            _say(str(finding.message))
        self._call_back(finding)
        for name, sink in self._sinks.items():
            if name not in self.isolation.off:
                self._to_sink(name, sink.emit_finding, finding)

    @part("on_finding")
    def _call_back(self, finding: Finding) -> None:
        if self._settings.on_finding is not None:
            self._settings.on_finding(finding)

    def _to_sink(self, name: str, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except Exception as error:
            self.isolation.failed(name, error)

    def _release(self) -> None:
        """Hand the last frames to the recorder: nothing can be logged for them any more."""
        recorder = self._recorder
        if recorder is None:
            return
        waiting: list[_Held] = []
        for held in self._held:
            if held.logged:
                waiting.append(held)
            else:
                recorder.put(held.frame, keep=held.keep)
        self._held = waiting
        if recorder.problem and not self._problem_told:
            self._problem_told = True
            _say(f"the record is incomplete: {recorder.problem}; training goes on")

    def _open_recorder(self) -> _Recording:
        if self._recorder is None:
            asked = self._settings
            settings = {
                "every": asked.every if isinstance(asked.every, int) else repr(asked.every),
                "backend": asked.backend,
                "limits": asked.limits,
                "transform": None if asked.transform is None else repr(asked.transform),
                "stop_after": asked.stop_after,
            }
            meta = describe_run(self._roster.models, settings)
            if asked.record is None:
                self._recorder = MemoryRecorder(meta=meta, budget=asked.budget)
            else:
                self._recorder = Recorder(
                    asked.record, meta=meta, budget=asked.budget, overwrite=asked.overwrite, join=asked.join
                )
        return self._recorder

    def _report(self, part: str, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        _say(f"own error in {part!r}, which is switched off; training goes on ({message})")
        if self._recorder is not None:
            self._recorder.event({"kind": "error", "part": part, "message": message})


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


def watch(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Any = None,
    *,
    record: str | Path | None = None,
    every: int | StepSchedule = 1,
    modules: Any = "auto",
    modules_every: int = 50,
    transform: Transform | None = None,
    flow: Mapping[str, float] | None = None,
    limits: float | Mapping[str, float] | None = None,
    sinks: Sequence[Sink] = (),
    rules: Any = "default",
    budget: str | int = "256MB",
    on_finding: Callable[[Finding], None] | None = None,
    backend: str = "auto",
    strict: bool = False,
) -> Monitor:
    """Watch a model's training: measure, record and judge every optimizer step.

    Watching alone changes nothing: the weights stay bit-identical to an unwatched run. Attaching a second time to a
    model replaces the first attachment.

    Args:
        model: the module that is trained, or a mapping of names to modules (GAN: {"G": g, "D": d}).
        optimizer: an optimizer, a sequence or a mapping of them; None: every optimizer that steps a parameter of the
            model, found when it steps.
        record: run folder to create; None keeps the run in bounded memory.
        every: which steps get the full per-tensor table: an int or a callable step -> bool. Scalars are kept for every
            step.
        modules: "auto" or None. Probes of activations are not part of this version: a list of patterns is an error.
        modules_every: reserved for them.
        transform: what to do to gradients, e.g. `gm.clip.norm(1.0)`.
        flow: limits of the gradient that flows back through modules; not part of this version.
        limits: your own alarm: a pre-clip norm for the whole model, or a mapping pattern -> norm; exceeding it is
            finding GM412, said on stderr at once.
        sinks: objects with `emit(frame)`, `emit_finding(finding)`, `close()`.
        rules: "default", or a sequence of codes and rule objects.
        budget: bound on the run folder's size, e.g. "256MB".
        on_finding: called with each finding as soon as it is made.
        backend: "auto", "native", "torch" or "reference".
        strict: raise gradmedic's own errors instead of isolating them (for tests).

    Returns:
        A monitor; use it as a context manager, or call `close()`.

    Raises:
        InputError: not a module, an optimizer of another model, nothing trainable, an unknown pattern, an existing run.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     model(torch.ones(4, 2)).sum().backward()
        ...     optimizer.step()
        >>> monitor.latest.step
        0
    """
    if flow:
        raise InputError(
            "flow: clipping the gradient that flows through modules is not part of this version; leave it out"
        )
    if modules not in ("auto", None):
        raise InputError("modules: probing modules is not part of this version; leave it at 'auto' or pass None")
    roster = Roster(model)
    check_trainable(roster)
    optimizers = check_optimizers(optimizer, roster)
    check_limits(limits, roster.models, roster)
    monitor = Monitor(
        roster,
        optimizers,
        Settings(record, every, transform, limits, sinks, rules, budget, on_finding, backend, strict),
    )
    for each in roster.models.values():
        earlier = _attached.get(unwrap(each))
        if earlier is not None and (former := earlier()) is not None:
            former.close("attached anew")
        _attached[unwrap(each)] = weakref.ref(monitor)
    return monitor


def watch_process(
    *,
    record: str | Path | None,
    every: int | StepSchedule = 1,
    modules: Any = "auto",
    transform: Transform | None = None,
    guard: bool = False,
    limits: Any = None,
    stop_after: int | None = None,
    budget: str | int = "256MB",
    lang: str = "en",
    namespace: Callable[[], Mapping[str, Any]] | None = None,
    join: bool = False,
    on_finding: Callable[[Finding], None] | None = None,
    lazy: bool = True,
    overwrite: bool = False,
    strict: bool = False,
) -> Monitor:
    """Watch every optimizer of this process, for `gradmedic run`: models are found when they are trained.

    Args:
        record, every, transform, limits, budget, on_finding, strict: as for `watch`.
        modules: as for `watch`.
        guard: must be False; guards are not part of this version.
        stop_after: raise `StepLimit` (a SystemExit with code 0) after so many optimizer steps.
        lang: language of findings, "en" or "zh".
        namespace: returns the script's global variables, whose names models, optimizers and bare tensors get.
        join: write into a run folder that other processes write to as well.
        lazy: make the run folder at the first frame.
        overwrite: replace a run that the folder holds.

    Returns:
        A monitor.
    """
    if guard:
        raise InputError("guard: guards are not part of this version; leave it out")
    if modules not in ("auto", None):
        raise InputError("modules: probing modules is not part of this version; leave it out")
    settings = Settings(
        record, every, transform, limits, budget=budget, on_finding=on_finding, strict=strict, lang=lang
    )
    settings.stop_after, settings.join, settings.overwrite = stop_after, join, overwrite
    settings.namespace = namespace
    monitor = Monitor(Roster(None, namespace), None, settings)
    if not lazy:
        monitor._open_recorder()
    return monitor


#: Model -> its monitor, so that attaching anew replaces; both are held weakly.
_attached: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Monitor]] = weakref.WeakKeyDictionary()
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
    for monitor in list(_alive):
        monitor.close("interpreter exit")


def _renew_locks() -> None:
    for monitor in list(_alive):
        monitor._lock = monitor._watcher.renew_lock()
        # What the parent had not handed on yet is the parent's.
        monitor._held, monitor._backlog = [], []


def _namer(namespace: Callable[[], Mapping[str, Any]]) -> Callable[[Any, Sequence[str]], str]:
    return lambda optimizer, taken: unique(variable_name(optimizer, namespace()) or "optimizer", taken)


def _log_into(frame: Frame, key: str, value: float | None) -> None:
    if key == "loss":
        frame.loss = value
    elif value is not None:
        frame.logged = {**frame.logged, key: value}


def _say(text: str) -> None:
    """Say one line on stderr; a closed or broken stderr is nobody's fault."""
    try:
        print(f"gradmedic: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
