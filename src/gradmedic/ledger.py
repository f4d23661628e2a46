"""The way of a frame once a step is made: off the device, before the rules, into the record, out to the sinks.

The last frame is held back until the next one comes, so that what the user logs right after a step can join it. Numbers
that lie on a device are not waited for: see `gradmedic.transit`.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from gradmedic.clip.factors import BAD_FACTORS
from gradmedic.diagnosis import Engine, Finding
from gradmedic.frame import Frame
from gradmedic.host_copies import HostCopies
from gradmedic.isolation import Isolation, Sentence, part
from gradmedic.origins import origin_from_gradients
from gradmedic.probes.pending import PendingFrame
from gradmedic.process_rank import is_restart, rank_and_world
from gradmedic.record import MemoryRecorder, Recorder, Run
from gradmedic.roster import Roster
from gradmedic.run_meta import describe_run
from gradmedic.schedule import Escalation
from gradmedic.settings import Settings
from gradmedic.sinks.feed import SinkFeed
from gradmedic.transit import Transit, Traveller

#: Steps that are not recorded are sent home together, so many at a time.
_BACKLOG = 8
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
        self._settings = settings
        self._roster = roster
        self._schedule = schedule
        self._on_device = settings.backend == "torch"
        self._sinks = SinkFeed(
            settings.sinks, self.isolation, lambda event: self.event(event), record=settings.record, lang=settings.lang
        )
        self._recorder: Recording | None = None
        self._transit = Transit(HostCopies())
        self._held: deque[Traveller] = deque()
        self._last: Traveller | None = None
        self._judged: Traveller | None = None  # the one that is judged now: a callback may ask for the record
        self._logged: dict[str, torch.Tensor | float] = {}
        self._rule_errors = 0
        self._origin_told = False
        self._problem_told = self._factors_told = False
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
        if not self._transit.hold(event):
            self._happened(event)

    def _happened(self, event: dict[str, Any]) -> None:
        self._origin_told |= event["kind"] == "origin"
        if event.get("part") == "ranks":
            say(str(event["message"]))
        self.engine.on_event(event)
        self.recorder.event(event)

    def pending(self, pending: PendingFrame) -> None:
        """Take a step that was made."""
        recorder = self.recorder
        self.release()
        pending.log(self._logged)
        self._logged.clear()
        pending.frame.overhead_seconds = self.isolation.seconds - self._spent
        self._spent = self.isolation.seconds
        self._last = self._transit.add(pending)
        if not self._waits_on_device(pending) or pending.keep or self._transit.unsent >= _BACKLOG:
            self._transit.send()
        self._take(wait=False)
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
        if under_way or self._last is None:
            self._logged.update(given)
        else:
            self._transit.log(self._last, given)

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
        self._held.clear()
        self._transit.forget()
        self._last = None
        self._logged.clear()
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
        self._transit.copies.over = True
        self.resolve()
        self.release()
        for finding in self.engine.finish():
            self._found(finding)
        for finding in self.engine.revised:  # whoever reads the record takes the last word
            self._note(finding)

    def _waits_on_device(self, pending: PendingFrame) -> bool:
        return self._on_device or any(reading.device.type != "cpu" for reading, _ in pending.readings)

    @property
    def host_syncs(self) -> int:
        """How often training was held up until a device had come so far; see `HostCopies.waits`."""
        return self._transit.copies.waits

    def resolve(self) -> None:
        """Bring to the host what still lies on a device, in one copy, wait for it, and judge it."""
        self._transit.send()
        self._take(wait=True)

    def _take(self, *, wait: bool) -> None:
        """Judge the frames that have arrived, or, if it is waited for, all."""
        if self._resolving:  # asked for by a callback of a frame that is judged now
            return
        self._resolving = True
        try:
            for traveller in self._transit.landed(wait=wait):
                self._resolved(traveller)
        finally:  # what passes through may be a Ctrl-C, or the exit of a callback that has closed the monitor
            self._resolving = False
            self._judged = None
            if self._closing is not None:
                closing, self._closing = self._closing, None
                self._finish(*closing)

    def _resolved(self, traveller: Traveller) -> None:
        frame = traveller.frame
        assert frame is not None
        self.latest = frame
        self._tell_origin(frame)
        self._tell_bad_factors(frame)
        if frame.nonfinite and not frame.skipped:
            self._schedule.trigger(frame.step)
            self.recorder.dump_flight()
        self._judged = traveller
        self._held.append(traveller)
        try:
            self._judge(frame)
        finally:
            self._judged = None
            traveller.keep |= self._schedule.escalated(frame.step)
            if self._sinks:
                self._sinks.made(frame)
            for event in traveller.events:
                self._happened(event)
            traveller.events.clear()

    @part("origin")
    def _tell_origin(self, frame: Frame) -> None:
        if self._origin_told or frame.skipped or not frame.nonfinite:
            return
        facts = self.engine.facts
        order = {} if facts is None else {name: fact.order for name, fact in facts.parameters.items()}
        place = {"step": frame.step, "optimizer": frame.optimizer, "time": frame.time}
        # Not held back: it belongs to this frame, and not to the newest one that is under way.
        self._happened({**origin_from_gradients(frame, order, shared=rank_and_world()[1] > 1), **place})

    @part("transform")
    def _tell_bad_factors(self, frame: Frame) -> None:
        """Say once that a transform of the user's own answered what is no factor, which has come late from a device."""
        names = [name for name in frame.logged if name.startswith(BAD_FACTORS)]
        if names and not self._factors_told:
            self._factors_told = True
            whose = names[0].removeprefix(BAD_FACTORS)
            message = f"{whose} returned factors that are NaN, infinite or negative; they count as 1"
            say(f"step {frame.step}: {message}; training goes on")
            event = {"kind": "error", "part": "transform", "off": False, "step": frame.step, "message": message}
            self._happened({**event, "time": frame.time})

    @part("diagnosis")
    def _judge(self, frame: Frame) -> None:
        for finding in self.engine.on_frame(frame):
            self._found(finding)
        for message in self.engine.errors[self._rule_errors :]:
            self.recorder.event({"kind": "error", "part": "rule", "step": frame.step, "message": message})
        self._rule_errors = len(self.engine.errors)

    def _found(self, finding: Finding) -> None:
        recorder = self.recorder
        self._note(finding)
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

    def _note(self, finding: Finding) -> None:
        self.recorder.event({"kind": "finding", "step": finding.step, "finding": finding.to_json(full=True)})

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
        self._last = None
        while self._held and self._held[0].complete and self._held[0] is not self._judged:
            held = self._held.popleft()
            assert held.frame is not None
            recorder.put(held.frame, keep=held.keep)
            if self._sinks:
                self._sinks.final(held.frame)

    def _report(self, part: str, error: Exception) -> None:
        if isinstance(error, Sentence):
            message = str(error)
            say(message)
        else:
            message = f"{type(error).__name__}: {error}"
            say(f"own error in {part!r}, which is switched off; training goes on ({message})")
        if self._recorder is not None:
            self._recorder.event({"kind": "error", "part": part, "step": self._step(), "message": message})

    def _step(self) -> int:
        """Index of the step that is under way, or comes next."""
        last = self._last
        made = None if last is None else (last.frame or (last.pending.frame if last.pending is not None else None))
        made = made or self.latest
        return 0 if made is None else made.step + 1


def say(text: str) -> None:
    """Say one line on stderr; a closed or broken stderr is nobody's fault."""
    try:
        print(f"gradmedic: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
