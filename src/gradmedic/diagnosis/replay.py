"""Diagnosing a record, finished or still growing: its events and frames go through an engine as they happened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from gradmedic.diagnosis.engine import Engine
from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.limits import Limits
from gradmedic.frame import Frame
from gradmedic.types import Event


class Recorded(Protocol):
    """Anything that can be replayed: an opened run folder, a monitor's run in memory."""

    @property
    def meta(self) -> Mapping[str, Any]: ...

    @property
    def events(self) -> Sequence[Event]: ...

    def frames(self) -> Iterable[Frame]: ...


def diagnose(run: Recorded, *, lang: str = "en", limits: Limits = None) -> list[Finding]:
    """Diagnose a run.

    The same rules see the same frames and events in the same order as while it trained.

    Args:
        run: an opened run folder (`gm.open_run`), or anything with `meta`, `events` and `frames()`.
        lang: language of the messages, "en" or "zh".
        limits: the user's own alarm; None for the one that the run was recorded with.

    Returns:
        Findings, most likely root cause first, consequences folded under their cause.

    Raises:
        InputError: unknown language, or limits that are not positive numbers.
    """
    engine = Engine(lang=lang, limits=limits if limits is not None else run.meta.get("limits"))
    replay(run, engine)
    return engine.findings()


def replay(run: Recorded, engine: Engine) -> None:
    """Feed a whole run to an engine, and finish it."""
    for entry in merged(run.events, run.frames()):
        if isinstance(entry, Frame):
            engine.on_frame(entry)
        else:
            engine.on_event(entry)
    engine.finish()


def merged(events: Iterable[Event], frames: Iterable[Frame]) -> Iterator[Event | Frame]:
    """Yield events and frames in the order in which they happened.

    An event comes before a frame when its time is not after the frame's and, where it names a step of the same
    optimizer, that step is not after the frame's either.
    """
    waiting = sorted(events, key=_time)
    for frame in frames:
        cut = 0
        held: list[Event] = []
        while cut < len(waiting) and _time(waiting[cut]) <= frame.time:
            event = waiting[cut]
            cut += 1
            if _belongs_later(event, frame):
                held.append(event)
            else:
                yield event
        if cut:
            waiting = held + waiting[cut:]
        yield frame
    yield from waiting


def _time(event: Event) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, (int, float)) else -math.inf


def _belongs_later(event: Event, frame: Frame) -> bool:
    step = event.get("step")
    if not isinstance(step, int) or event.get("optimizer", frame.optimizer) != frame.optimizer:
        return False
    return step > frame.step
