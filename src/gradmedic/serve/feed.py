"""One run as it grows: its scalars are looked at twice a second, its tables as often as they can be afforded."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradmedic.diagnosis import Finding, diagnose
from gradmedic.record import MemoryRecorder, Run
from gradmedic.record.store import FolderStore
from gradmedic.report.page.parts import Part, joined, steps_part, tables_part
from gradmedic.report.page.payload import FORMAT, version_of
from gradmedic.report.page.verdict import recorded_findings
from gradmedic.report.views.source import Source
from gradmedic.serve.growth import Growth
from gradmedic.serve.lanes import Lane
from gradmedic.serve.pace import Pace
from gradmedic.serve.stores import ScalarsStore, changed_at, holds_run
from gradmedic.serve.words import WORDS

#: Columns of the live page's heatmaps, at most; they are sent anew with every change.
COLUMNS = 200
_LOOK_SECONDS, _TABLES_SECONDS = 0.4, 1.0
#: Runs that nobody has asked for in so long are looked at only now and then …
_WATCHED_SECONDS, _IDLE_SECONDS = 10.0, 3.0
#: … and their tables are forgotten.
_FORGET_SECONDS = 120.0
#: A run that ends without saying so is judged as a whole when nothing has come for so long.
_SILENT_SECONDS = 60.0
#: What several ranks tell together, none of them can say: while they train, they are judged so often.
_RANKS_SECONDS = 10.0

#: What both parts speak of, and what is made of both.
_SHARED = ("run", "scalars")


class Feed:
    """What the page is told of one run.

    May be used by several threads. Never raises: what goes wrong is among the problems that the page shows.

    Args:
        path: the run folder; it need not exist yet.
        lang: "en" or "zh", of the server's own words.
        tables, judging: where tables are read and whole runs are judged.
    """

    def __init__(self, path: Path, lang: str, tables: Lane, judging: Lane) -> None:
        self.path = path
        self.looked = self._asked = float("-inf")
        self._words = WORDS[lang]
        self._tables_lane, self._judging_lane = tables, judging
        self._lock = threading.Lock()
        self._look_pace, self._tables_pace = Pace(_LOOK_SECONDS), Pace(_TABLES_SECONDS, times=1.0)
        self._scalars: Run | None = None
        self._judge_pace = Pace(_RANKS_SECONDS, times=10.0)
        self._whole: Run | None = None
        self._folder_changed = 0.0
        self._content = ""  # version of what the scalars tell
        self._content_since = time.monotonic()
        self._steps: Part = {}
        self._tables: Part = {}
        self._tables_text = b""
        self._growth = Growth(COLUMNS)
        self._tables_of = ""  # content for which they were made
        self._tables_count = 0
        self._reading = self._judging = False
        self._judged: tuple[str, list[Finding]] = ("", [])
        self._failures: dict[str, str] = {}
        self._text: tuple[str, bytes] = ("", b"")

    @property
    def known(self) -> bool:
        """Whether there was ever a run."""
        return self._scalars is not None

    @property
    def watched(self) -> bool:
        """Whether somebody has asked for the run of late."""
        return time.monotonic() - self._asked < _WATCHED_SECONDS

    @property
    def ready(self) -> bool:
        """Whether the tables were read once, or could not be."""
        return self._tables_count > 0 or not self._reading

    @property
    def current(self) -> bool:
        """Whether the tables are as new as the scalars, or will not be so in a moment."""
        return not self._reading

    @property
    def version(self) -> str:
        """Another one whenever the answer is."""
        failed = zlib.crc32("\n".join(self._failures.values()).encode("utf-8", "replace"))
        return f"{self._content}-{self._tables_count}-{self._judged[0][:4]}-{failed:x}"

    def summary(self) -> dict[str, Any]:
        """Return {"name", "steps", "ended", "version"} of the run as it was when it was last looked at."""
        run = self._steps.get("run", {})
        name = self.path.name or str(self.path)
        return {
            "name": name.encode("utf-8", "replace").decode("utf-8"),
            "steps": run.get("steps", 0),
            "ended": bool(run.get("ended", False)),
            "version": self.version,
        }

    def look(self) -> None:
        """Read what has come of the scalars, unless that was done a moment ago."""
        with self._lock:
            if not self._look_pace.due or (not self.watched and self._may_rest()):
                return
            self.looked = time.monotonic()
            with self._look_pace:
                self._guarded("scalars", self._look)
            if self.looked - self._asked > _FORGET_SECONDS and not self._reading:
                self._whole = None

    def ask(self) -> None:
        """Look at the run, and begin to read what is new of its tables."""
        self._asked = time.monotonic()
        self.look()
        with self._lock:
            new = self._tables_of != self._content or (self._growth.owes and self._growth.due)
            reads = new and not self._reading and self._tables_pace.due
            self._reading |= reads
            judges = not reads and self._should_judge()
            self._judging |= judges
        if reads:
            self._tables_lane.run(self._read_tables)
        if judges:
            self._judging_lane.run(self._judge)

    def answer(self, version: str | None = None) -> bytes | None:
        """Return the payload as JSON; None when it has that version."""
        with self._lock:
            now = self.version
            if now == version:
                return None
            if self._text[0] != now:
                self._text = (now, self._assembled(now))
            return self._text[1]

    def _may_rest(self) -> bool:
        """Whether a run that nobody looks at needs no look: it has ended and no file came, or it was a moment ago."""
        if time.monotonic() - self.looked < _IDLE_SECONDS:
            return True
        ended = self._steps.get("run", {}).get("ended", False)
        return bool(ended) and changed_at(self.path) == self._folder_changed

    def _look(self) -> None:
        folder_changed = changed_at(self.path)
        if self._scalars is None:
            if not holds_run(self.path):
                self._steps = self._empty(self._words["waiting"].format(path=self.path))
                self._content = "waiting"
                return
            self._scalars = Run(ScalarsStore(self.path), self.path)
        else:
            self._scalars.reload()
        content = version_of(self._scalars)
        if content != self._content:
            self._steps = steps_part(Source(self._scalars), self._findings(content))
            self._content, self._content_since = content, time.monotonic()
        self._folder_changed = folder_changed

    def _findings(self, content: str) -> list[Finding]:
        """Return what is wrong with the run: as it was judged as a whole, else as it was told while it trained."""
        if content and self._judged[0] == content:
            return self._judged[1]
        if self._judged[0] and self._of_ranks:
            return self._judged[1]
        return recorded_findings(self._scalars.events) if self._scalars is not None else []

    @property
    def _of_ranks(self) -> bool:
        return bool(self._steps.get("run", {}).get("ranks"))

    def _read_tables(self) -> None:
        with self._tables_pace:
            self._guarded("tables", self._make_tables)
        self._reading = False

    def _make_tables(self) -> None:
        """Read the tables; takes seconds for a long run, and holds no lock meanwhile."""
        with self._lock:
            content, there = self._content, self._scalars is not None
            findings = self._findings(content)
            ended = bool(self._steps.get("run", {}).get("ended", False))
        if not there:
            run = _no_run()
        elif self._whole is None:
            run = self._whole = Run(FolderStore(self.path), self.path)
        else:
            run = self._whole.reload()
        made = self._growth.update(run, findings, whole=ended)
        text = _dumped({key: value for key, value in made.items() if key not in _SHARED})
        with self._lock:
            tables = {key: made[key] for key in _SHARED} | {"problems": [*run.problems] if there else []}
            self._tables_count += text != self._tables_text or tables != self._tables
            self._tables, self._tables_text, self._tables_of = tables, text, content

    def _should_judge(self) -> bool:
        """Whether a run that is over has not been judged: some rules speak only then, some take back what they said."""
        if self._judging or self._whole is None or self._judged[0] == self._content:
            return False
        if self._of_ranks and self._judge_pace.due:
            return True
        ended = self._steps.get("run", {}).get("ended", False)
        return bool(ended) or time.monotonic() - self._content_since > _SILENT_SECONDS

    def _judge(self) -> None:
        with self._judge_pace:
            self._guarded("diagnosis", self._make_judgement)
        self._judging = False

    def _make_judgement(self) -> None:
        content = self._content
        findings = list(diagnose(Run(FolderStore(self.path), self.path)))
        with self._lock:
            self._judged = (content, findings)
            if content == self._content and self._scalars is not None:
                self._steps = steps_part(Source(self._scalars), findings)
                self._tables_of = ""  # the trouble of tensors rests on findings

    def _assembled(self, version: str) -> bytes:
        steps = self._steps or self._empty("")
        tables = self._tables or {"run": {"thinned": False}, "scalars": {}, "problems": []}
        top = joined(steps, {key: tables[key] for key in _SHARED})
        problems = [*steps["run"]["problems"], *tables["problems"], *self._failures.values()]
        top["run"]["problems"] = list(dict.fromkeys(text for text in problems if text))
        head = _dumped({"format": FORMAT, "version": version, **top})
        return head[:-1] + b"," + (self._tables_text or _no_tables())[1:]

    def _empty(self, problem: str) -> Part:
        part = steps_part(Source(_no_run()), [])
        part["run"] |= {"name": self.path.name, "path": str(self.path), "problems": [problem] if problem else []}
        part["run"] |= {"begun": None, "ended": False, "reason": None, "environment": []}
        return part

    def _guarded(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a run that is damaged beyond all care is shown as far as it goes
            self._failures[what] = self._words["failed"].format(error=f"{what}: {type(error).__name__}: {error}")
        else:
            self._failures.pop(what, None)


def _no_run() -> Run:
    recorder = MemoryRecorder(meta={})
    recorder.close()
    return recorder.run


def _no_tables() -> bytes:
    made = tables_part(Source(_no_run()), [], COLUMNS)
    return _dumped({key: value for key, value in made.items() if key not in _SHARED})


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
