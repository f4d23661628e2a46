"""Diagnosing a record, finished or still growing: its events and frames go through an engine as they happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from gradmedic.diagnosis.draft import Rule
from gradmedic.diagnosis.engine import Engine
from gradmedic.diagnosis.finding import Finding, rank_of
from gradmedic.diagnosis.findings import Findings
from gradmedic.diagnosis.given_rules import RulesForEach
from gradmedic.diagnosis.limits import Limits, recorded_limits
from gradmedic.diagnosis.rank_events import events_of_first_rank, rank_events
from gradmedic.diagnosis.ranking import ranked
from gradmedic.diagnosis.ranks import one_of_several
from gradmedic.frame import Frame
from gradmedic.types import Event


class Recorded(Protocol):
    """Anything that can be replayed: an opened run folder, a monitor's run in memory."""

    @property
    def meta(self) -> Mapping[str, Any]: ...

    @property
    def events(self) -> Sequence[Event]: ...

    def frames(self) -> Iterable[Frame]: ...


def diagnose(
    run: Recorded, *, lang: str = "en", limits: Limits = None, rules: str | Sequence[str | Rule] = "default"
) -> Findings:
    """Diagnose a run.

    The same rules see the same frames and events in the same order as while it trained.

    Args:
        run: an opened run folder (`gm.open_run`), or anything with `meta`, `events` and `frames()`.
        lang: language of the messages, "en" or "zh".
        limits: the user's own alarm; None for the one that the run was recorded with.
        rules: "default", or a sequence of codes and rule objects, as for `gm.watch`; objects are copied, so give fresh
            ones. One that cannot be copied is used up.

    Returns:
        A list of findings, most likely root cause first, consequences folded under their cause; `print` it for one
        paragraph each.

    Raises:
        InputError: unknown language or code, an object that is no rule, or limits that are not positive numbers; or
            the record has the steps of several processes, and a rule cannot be copied.
    """
    given = RulesForEach(rules)
    held = limits if limits is not None else recorded_limits(run.meta)
    engines = replay_by_process(run, lambda: Engine(rules=given.next(), lang=lang, limits=held))
    if len(engines) == 1:
        return Findings(engines[0].findings())
    return Findings(_joined([engine.findings() for engine in engines]))


def replay(run: Recorded, engine: Engine) -> None:
    """Feed a whole run to one engine, and finish it."""
    for entry in merged(run.events, run.frames()):
        if isinstance(entry, Frame):
            engine.on_frame(entry)
        else:
            engine.on_event(entry)
    engine.finish()


def replay_by_process(run: Recorded, make: Callable[[], Engine]) -> list[Engine]:
    """Feed a whole run to engines, one for each process that trained one after the other, and finish them.

    A process whose steps begin anew has a history of its own: the losses and norms of two of them are no one's course.
    """
    engines = [make()]
    last: dict[str, int] = {}
    facts: Event | None = None
    events = [*events_of_first_rank(run.events, run, alone=one_of_several(run)), *rank_events(run)]
    for entry in merged(events, run.frames()):
        if not isinstance(entry, Frame):
            facts = entry if entry.get("kind") == "facts" else facts
            engines[-1].on_event(entry)
            continue
        if entry.step <= last.get(entry.optimizer, -1):
            engines.append(make())
            last.clear()
            if facts is not None:
                engines[-1].on_event(facts)
        last[entry.optimizer] = entry.step
        engines[-1].on_frame(entry)
    for engine in engines:
        engine.finish()
    return engines


def _joined(listed: list[list[Finding]]) -> list[Finding]:
    """Return the findings of several processes as one list; the same finding of several is said once."""
    found: dict[tuple[str, str, str, tuple[str, ...]], Finding] = {}
    for finding in (each for of_one in listed for each in of_one):
        key = finding.code, finding.optimizer, finding.variant, finding.where
        if key not in found or rank_of(finding.severity) > rank_of(found[key].severity):
            found[key] = finding
    return ranked(found.values())


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
