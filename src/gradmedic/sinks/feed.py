"""The way from the ledger to the sinks: which of them, at what moment, and what is said when one fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.isolation import Isolation, Sentence
from gradmedic.names import unique
from gradmedic.process_rank import rank_and_world
from gradmedic.sinks.base import BaseSink, RunLabel
from gradmedic.sinks.queued import PATIENCE, Queued
from gradmedic.sinks.words import words
from gradmedic.types import Sink

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

Event = dict[str, Any]

#: Whoever waits longer than this for a program to end wonders what it is doing.
_SILENT_SECONDS = 2.0


class SinkTrouble(Sentence):
    """A whole sentence on why a sink is off."""


class SinkFeed:
    """Feeds the sinks of one run.

    A sink with `direct = True` (and, in strict mode, any) is called in the training thread, in every process, at the
    end of each step. The others work in threads of their own and on rank 0 only; they get a frame once it is final,
    that is, once nothing can be logged for it any more: when the next step ends.

    Args:
        sinks: what `watch` was given.
        isolation: where failures are kept.
        event: records something that happened.
        record: the run's folder, None without one.
        lang: of what is said.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        isolation: Isolation,
        event: Callable[[Event], None],
        *,
        record: str | Path | None = None,
        lang: str = "en",
    ) -> None:
        self._isolation = isolation
        self._event = event
        self._record = record
        self._words: Mapping[str, str] = words(lang)
        self._direct: dict[str, Sink] = {}
        self._queued: dict[str, Queued] = {}
        self._unfed: list[Queued] = []
        self._began = False
        for sink in sinks:
            self._add(sink)

    def _add(self, sink: Sink) -> None:
        if isinstance(sink, Queued) and not self._isolation.strict:
            self._queued[self._name(sink.sink)] = sink
        elif self._isolation.strict or getattr(sink, "direct", False):
            self._direct[self._name(sink)] = sink
        else:
            patience = sink.patience if isinstance(sink, BaseSink) else PATIENCE
            self._queued[self._name(sink)] = Queued(sink, patience=patience)

    def _name(self, sink: Sink) -> str:
        return unique(f"sink {type(sink).__name__}", [*self._direct, *self._queued])

    def __bool__(self) -> bool:
        return bool(self._direct or self._queued or self._unfed)

    def made(self, frame: Frame) -> None:
        """Give a frame that was just made to those that are called directly; a number may still be logged for it."""
        self._begin()
        for name, sink in self._direct.items():
            self._call(name, sink.emit, frame)

    def final(self, frame: Frame) -> None:
        """Give a frame that will not change any more to the queues."""
        self._begin()
        for name, sink in self._queued.items():
            if not sink.off:
                sink.emit(frame)
            if sink.trouble is not None or sink.dropped:
                self._look(name, sink, frame.step)

    def found(self, finding: Finding) -> None:
        """Give a finding to all."""
        self._begin()
        for name, direct in self._direct.items():
            self._call(name, direct.emit_finding, finding)
        for queued in self._queued.values():
            queued.emit_finding(finding)

    def close(self) -> None:
        """Close all; the queues have their patience together, not one after the other."""
        for name, sink in self._direct.items():
            self._call(name, sink.close, even_if_off=True)
        told = {name for name, queued in self._queued.items() if queued.off and queued.trouble is not None}
        for name in told:
            self._look(name, self._queued[name], 0)
        for queued in (*self._queued.values(), *self._unfed):
            queued.ask_to_close()
        began = time.monotonic()
        for name, queued in self._queued.items():
            if queued.patience > _SILENT_SECONDS and not queued.ended(began + _SILENT_SECONDS):
                _tell(self._words["waiting"].format(sink=name, seconds=queued.patience))
            finished = queued.wait(began + queued.patience)
            self._tell_end(name, queued, finished, count=name not in told)
        for queued in self._unfed:
            queued.wait(began + queued.patience)

    def forget_parent(self) -> None:
        """In a forked child: files, ports and connections are the parent's; kept, so that nothing ends them."""
        self._unfed += self._queued.values()
        self._queued = {}

    def _begin(self) -> None:
        if self._began:
            return
        self._began = True
        rank, _ = rank_and_world()  # as late as this: a process group is often made after `watch`
        if rank != 0:
            self._unfed += self._queued.values()
            self._queued = {}
        name = "gradmedic" if self._record is None else Path(self._record).name
        label = RunLabel(name, socket.gethostname(), rank)
        for key, queued in self._queued.items():
            self._call(key, queued.begin, label)
        for key, sink in self._direct.items():
            if isinstance(sink, BaseSink):
                self._call(key, sink.begin, label)

    def _call(self, name: str, method: Callable[..., None], *args: Any, even_if_off: bool = False) -> None:
        if name in self._isolation.off and not even_if_off:
            return
        try:
            method(*args)
        except Exception as error:
            self._isolation.failed(name, error)

    def _look(self, name: str, sink: Queued, step: int) -> None:
        """Say once that a sink has failed, or cannot keep up."""
        if sink.off:
            self._say(name, "off", why=sink.trouble)
        elif sink.trouble is not None:
            self._say(f"{name}, trying again", "failing", why=sink.trouble)
        else:
            self._say(f"{name}, pace", "dropping", step=step)

    def _say(self, part: str, sentence: str, **values: Any) -> None:
        if part not in self._isolation.off:
            sink = part.partition(",")[0]
            self._isolation.failed(part, SinkTrouble(self._words[sentence].format(sink=sink, **values)))

    def _tell_end(self, name: str, sink: Queued, finished: bool, *, count: bool) -> None:
        """Say what was lost, unless the sink was off and that was said, or the sentence has the number already."""
        if not finished:
            self._say(f"{name}, end", "unfinished", seconds=sink.patience, dropped=sink.dropped)
        elif sink.trouble is not None or sink.dropped:
            self._look(name, sink, 0)
        if sink.dropped or not finished:
            total = sink.sent + sink.dropped
            message = self._words["dropped"].format(sink=name, dropped=sink.dropped, all=total)
            self._event({"kind": "sink", "sink": name, "sent": sink.sent, "dropped": sink.dropped, "message": message})
            if finished and count:
                _tell(message)


def _tell(text: str) -> None:
    from gradmedic.ledger import say  # imports this module

    say(text)
