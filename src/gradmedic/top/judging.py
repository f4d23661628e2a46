"""Findings of a run that is being watched: those that the run itself recorded, and those of a diagnosis beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.finding import Finding, rank_of
from gradmedic.diagnosis.ranking import ranked
from gradmedic.diagnosis.suppression import fold
from gradmedic.errors import InputError
from gradmedic.record.run import Run, open_run

#: At least so many seconds between two diagnoses, and so many times what one takes.
_PAUSE_SECONDS, _PAUSE_TIMES = 5.0, 20.0
#: A diagnosis reads all tables and steps; those of a larger run would take the memory, and the time, that the training
#: needs. What such a run has found by itself is shown all the same.
_LARGEST_BYTES, _LARGEST_STEPS = 48 << 20, 20_000


class Judge:
    """Says what is found in a run, and diagnoses it in a thread from time to time.

    Args:
        lang: "en" or "zh".
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self._made: list[Finding] | None = None
        self._thread: threading.Thread | None = None
        self._seen = -1
        self._next = 0.0
        self._news = threading.Event()

    def findings(self, run: Run) -> list[Finding]:
        """Return what is found: by the last diagnosis where there was one, and by the run itself since."""
        recorded = recorded_findings(run.events)
        if self._made is None:
            listed = fold(ranked(recorded))
        else:
            known = {_key(finding) for each in self._made for finding in (each, *each.folded)}
            since = [finding for finding in recorded if _key(finding) not in known and finding.step > self._seen]
            listed = [*self._made, *fold(ranked(since))]
        return [_worded(finding, self.lang) for finding in listed]

    def consider(self, path: Path, step: int, *, ended: bool = False) -> None:
        """Begin a diagnosis in a thread if it is time for one.

        Args:
            path: the run folder.
            step: how many steps there are, less one; nothing happens as long as that stays the same.
            ended: whether no more will come: then there is no need to wait.
        """
        running = self._thread is not None and self._thread.is_alive()
        if running or step == self._seen or step < 0 or (time.monotonic() < self._next and not ended):
            return
        if step >= _LARGEST_STEPS or _bytes_of(path) > _LARGEST_BYTES:
            return
        self._thread = threading.Thread(target=self._judge, args=(path, step), name="gradmedic-judge", daemon=True)
        self._thread.start()

    def has_news(self) -> bool:
        """Whether a diagnosis has ended since this was last asked."""
        if self._news.is_set():
            self._news.clear()
            return True
        return False

    def wait(self, timeout: float) -> None:
        """Wait for the diagnosis that runs, if there is one."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _judge(self, path: Path, step: int) -> None:
        began = time.monotonic()
        try:
            self._made = diagnose(open_run(path), lang=self.lang)
        except Exception:  # what the run itself has found still stands
            self._made = None
        took = time.monotonic() - began
        self._seen = step
        self._next = time.monotonic() + max(_PAUSE_SECONDS, _PAUSE_TIMES * took)
        self._news.set()


def recorded_findings(events: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the findings that a run has recorded: of each the most severe, in the order in which they were made."""
    found: dict[tuple[str, str, tuple[str, ...]], Finding] = {}
    for event in events:
        if event.get("kind") != "finding" or not isinstance(event.get("finding"), Mapping):
            continue
        try:
            finding = Finding.from_json(event["finding"])
            rank_of(finding.severity)
        except (KeyError, TypeError, ValueError, AttributeError):  # damaged, or of another version
            continue
        key = _key(finding)
        if key not in found or rank_of(finding.severity) >= rank_of(found[key].severity):
            found[key] = finding
    return list(found.values())


def _worded(finding: Finding, lang: str) -> Finding:
    """Return a finding in a language; as it stands where it is of a version whose words are not known here."""
    if finding.lang == lang:
        return finding
    try:
        return in_language(finding, lang)
    except (InputError, LookupError, ValueError, TypeError, AttributeError):
        return finding


def _key(finding: Finding) -> tuple[str, str, tuple[str, ...]]:
    return finding.code, finding.optimizer, finding.where[:1]


def _bytes_of(path: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in path.glob("*.arrows"))
    except OSError:
        return 0
