"""The way of a frame once a step is made: off the device, before the rules, into the record, out to the sinks.

The last frame is held back until the next one comes, so that what the user logs right after a step can join it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gradmedic.diagnosis import Engine, Finding
from gradmedic.frame import Frame
from gradmedic.isolation import Isolation, part
from gradmedic.origins import origin_from_gradients
from gradmedic.probes.pending import Parcel, PendingFrame
from gradmedic.process_rank import is_restart, rank_and_world
from gradmedic.record import MemoryRecorder, Recorder, Run
from gradmedic.roster import Roster
from gradmedic.run_meta import describe_run
from gradmedic.schedule import Escalation
from gradmedic.settings import Settings
from gradmedic.sinks.feed import SinkFeed, SinkTrouble

_BACKLOG = 64
_SERIOUS = ("error", "critical")


class Recording(Protocol):
    """What recorders offer; see `gradmedic.record`."""

    def put(self, frame: Frame, *, keep: bool) -> None: ...

    def event(self, event: Mapping[str, Any]) -> None: ...

    def dump_flight(self) -> None: ...

    def protect(self, step: int) -> None: ...

    def flush(self) -> bool: ...

    def close(self, reason: str = "finished") -> None: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def run(self) -> Run: ...


@dataclass(slots=True)
class _Held:
    """The last frame: it may still gain what the user logs for it."""

    frame: Frame
    keep: bool
    logged: dict[str, torch.Tensor] = field(default_factory=dict)


class Ledger:
    """Keeps one run: judges each frame, records it and hands it to the sinks.

    Not thread-safe by itself; the monitor's lock guards it.

    Args:
        settings: how to keep it.
        roster: the watched models, for the record's description of them.
        schedule: told to record in full when something goes wrong.
    """

    def __init__(self, settings: Settings, roster: Roster, schedule: Escalation) -> None:
        self.isolation = Isolation(settings.strict, self._report)
        self.engine = Engine(rules=settings.rules, limits=settings.limits, lang=settings.lang, strict=settings.strict)
        self.latest: Frame | None = None
        self.host_syncs = 0
        self._settings = settings
        self._roster = roster
        self._schedule = schedule
        self._on_device = settings.backend == "torch"
        self._sinks = SinkFeed(
            settings.sinks, self.isolation, lambda event: self.event(event), record=settings.record, lang=settings.lang
        )
        self._recorder: Recording | None = None
        self._backlog: list[PendingFrame] = []
        self._held: list[_Held] = []
        self._logged: dict[str, torch.Tensor | float] = {}
        self._rule_errors = 0
        self._origin_told = False
        self._problem_told = False
        self._spent = 0.0
        self._resolving = False
        self._closing: tuple[str, Callable[[], None]] | None = None

    @property
    def recorder(self) -> Recording:
        """The recorder; made when it is first asked for."""
        if self._recorder is None:
            asked = self._settings
            meta = describe_run(self._roster.models, asked.describe())
            rank, world = rank_and_world()
            if asked.record is None:
                self._recorder = MemoryRecorder(meta=meta, budget=asked.budget, rank=rank)
            else:
                again = is_restart(os.environ)
                self._recorder = Recorder(
                    asked.record,
                    meta=meta,
                    rank=rank,
                    world=world,
                    budget=asked.budget,
                    overwrite=asked.overwrite and not again,
                    join=asked.join or again,
                )
        return self._recorder

    def event(self, event: dict[str, Any]) -> None:
        """Take something that happened and is no per-step number."""
        event.setdefault("time", time.time())
        self._origin_told |= event["kind"] == "origin"
        if event.get("part") == "ranks":
            say(str(event["message"]))
        self.engine.on_event(event)
        self.recorder.event(event)

    def pending(self, pending: PendingFrame) -> None:
        """Take a step that was made."""
        recorder = self.recorder
        self.release()
        _add_to(pending, self._logged)
        self._logged.clear()
        pending.frame.overhead_seconds = self.isolation.seconds - self._spent
        self._spent = self.isolation.seconds
        self._backlog.append(pending)
        if not self._waits_on_device(pending) or pending.keep or len(self._backlog) >= _BACKLOG:
            self.resolve()
        if recorder.problem and not self._problem_told:
            self._problem_told = True
            say(f"{recorder.problem}; training goes on")

    def halted(self, step: int, reason: str) -> None:
        """A guard has ended the training: write out what is at hand, the last frames in full."""
        self.resolve()
        self.release()
        self.event({"kind": "halt", "step": step, "reason": reason})
        self.recorder.dump_flight()
        self.recorder.protect(step)
        self.recorder.flush()

    def log(self, given: Mapping[str, torch.Tensor | float], *, under_way: bool) -> None:
        """Add the user's numbers to the last frame, or, when a step is under way, to the next."""
        if under_way or not (self._backlog or self._held):
            self._logged.update(given)
            return
        if self._backlog:  # the last frame still lies on the device
            _add_to(self._backlog[-1], given)
            return
        held = self._held[-1]
        for key, value in given.items():
            if isinstance(value, torch.Tensor):
                held.logged[key] = value
            else:
                _log_into(held.frame, key, value)

    def close(self, reason: str, before: Callable[[], None]) -> None:
        """End the record. From inside a callback, the frames at hand come first.

        Args:
            reason: why, for the record.
            before: finishes what is open; called first.
        """
        if self._resolving:
            self._closing = (reason, before)
        else:
            self._finish(reason, before)

    def forget_parent(self) -> None:
        """In a forked child: what the parent had not handed on yet is the parent's."""
        self._held, self._backlog = [], []
        self._sinks.forget_parent()

    def _finish(self, reason: str, before: Callable[[], None]) -> None:
        before()
        self._end()
        try:
            self._close_sinks()
        finally:  # whoever interrupts the wait for a slow sink
            if self._recorder is not None:
                self._recorder.close(reason)

    @part("end")
    def _end(self) -> None:
        self.resolve()
        self.release()
        for finding in self.engine.finish():
            self._found(finding)

    def _waits_on_device(self, pending: PendingFrame) -> bool:
        return self._on_device or any(reading.norm.device.type != "cpu" for reading, _ in pending.readings)

    def resolve(self) -> None:
        """Bring to the host what still lies on a device, in one copy, and judge it."""
        waiting = [held for held in self._held if held.logged]
        if not self._backlog and not waiting:
            return
        parcel = Parcel()
        pending, self._backlog = self._backlog, []
        finishers = [each.pack(parcel) for each in pending]
        places = [(held, {key: parcel.add(value) for key, value in held.logged.items()}) for held in waiting]
        self.host_syncs += parcel.send()
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
        if self._closing is not None:
            closing, self._closing = self._closing, None
            self._finish(*closing)

    def _resolved(self, frame: Frame, keep: bool) -> None:
        self.latest = frame
        self._tell_origin(frame)
        if frame.nonfinite and not frame.skipped:
            self._schedule.trigger(frame.step)
            self.recorder.dump_flight()
        self._judge(frame)
        self._held.append(_Held(frame, keep or self._schedule.escalated(frame.step)))
        if self._sinks:
            self._sinks.made(frame)

    @part("origin")
    def _tell_origin(self, frame: Frame) -> None:
        if self._origin_told or frame.skipped or not frame.nonfinite:
            return
        facts = self.engine.facts
        order = {} if facts is None else {name: fact.order for name, fact in facts.parameters.items()}
        place = {"step": frame.step, "optimizer": frame.optimizer, "time": frame.time}
        self.event({**origin_from_gradients(frame, order, shared=rank_and_world()[1] > 1), **place})

    @part("diagnosis")
    def _judge(self, frame: Frame) -> None:
        for finding in self.engine.on_frame(frame):
            self._found(finding)
        for message in self.engine.errors[self._rule_errors :]:
            self.recorder.event({"kind": "error", "part": "rule", "message": message})
        self._rule_errors = len(self.engine.errors)

    def _found(self, finding: Finding) -> None:
        recorder = self.recorder
        recorder.event({"kind": "finding", "step": finding.step, "finding": finding.to_json(full=True)})
        if finding.severity != "info":
            recorder.protect(finding.step)
            recorder.dump_flight()
            if finding.severity in _SERIOUS:
                self._schedule.trigger(finding.step)
        if finding.code == "GM412":
            say(str(finding.message))
        self._call_back(finding)
        if self._sinks:
            self._sinks.found(finding)

    @part("on_finding")
    def _call_back(self, finding: Finding) -> None:
        if self._settings.on_finding is not None:
            self._settings.on_finding(finding)

    @part("sinks")
    def _close_sinks(self) -> None:
        """Close them once the record is written, which may take long, but while it can say what they did not get."""
        if self._sinks:
            if self._recorder is not None:
                self._recorder.flush()
            self._sinks.close()

    def release(self) -> None:
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
                if self._sinks:
                    self._sinks.final(held.frame)
        self._held = waiting

    def _report(self, part: str, error: Exception) -> None:
        if isinstance(error, SinkTrouble):
            message = str(error)
            say(message)
        else:
            message = f"{type(error).__name__}: {error}"
            say(f"own error in {part!r}, which is switched off; training goes on ({message})")
        if self._recorder is not None:
            self._recorder.event({"kind": "error", "part": part, "message": message})


def _add_to(pending: PendingFrame, given: Mapping[str, torch.Tensor | float]) -> None:
    for key, value in given.items():
        if key == "loss":
            pending.loss = torch.as_tensor(value, dtype=torch.float64)
        elif isinstance(value, torch.Tensor):
            pending.logged[key] = value
        else:
            pending.frame.logged = {**pending.frame.logged, key: value}


def _log_into(frame: Frame, key: str, value: float | None) -> None:
    if key == "loss":
        frame.loss = value
    elif value is not None:
        frame.logged = {**frame.logged, key: value}


def say(text: str) -> None:
    """Say one line on stderr; a closed or broken stderr is nobody's fault."""
    try:
        print(f"gradmedic: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
