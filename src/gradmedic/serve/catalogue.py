"""Which runs there are: those that were named, and those within folders that were named, new ones as they come."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradmedic.serve.feed import Feed
from gradmedic.serve.lanes import Lane
from gradmedic.serve.pace import Pace
from gradmedic.serve.stores import begun, children, holds_run

#: Of a folder of runs, so many of the newest.
MOST_RUNS = 200
_SCAN_SECONDS = 1.0
#: A listing takes no longer than this for runs that nobody looks at.
_LISTING_SECONDS = 0.3


class Catalogue:
    """The runs that are served, each with a number of its own that never changes.

    Args:
        paths: run folders, or folders of run folders; none of them need exist yet.
        lang: "en" or "zh".
    """

    def __init__(self, paths: Sequence[Path], lang: str) -> None:
        self._paths = [path.absolute() for path in paths]
        self._lang = lang
        self._tables, self._judging = Lane("tables"), Lane("judging")
        self._lock = threading.Lock()
        self._pace = Pace(_SCAN_SECONDS)
        self._ids: dict[Path, int] = {}
        self._feeds: list[Feed] = []
        self._shown: list[int] = []

    def listing(self) -> list[dict[str, Any]]:
        """Return {"id", "name", "steps", "ended", "version"} of each run.

        They stand as they were named, those within a folder newest first.
        """
        self._scan()
        shown = self._shown
        until = time.monotonic() + _LISTING_SECONDS
        # Those that somebody looks at first; the rest as far as the time goes, the others the next time.
        for feed in sorted((self._feeds[at] for at in shown), key=lambda feed: (not feed.watched, feed.looked)):
            if feed.watched or time.monotonic() < until:
                feed.look()
        listed = [{"id": place, **self._feeds[place].summary()} for place in shown]
        common = Counter(entry["name"] for entry in listed)
        for entry in listed:
            if common[entry["name"]] > 1:  # runs of one name lie in folders of different ones
                entry["name"] = f"{self._feeds[entry['id']].path.parent.name}/{entry['name']}"
        return listed

    def count(self) -> int:
        """Return how many runs there are, without those that are waited for."""
        self._scan()
        return sum(holds_run(self._feeds[at].path) for at in self._shown)

    def feed(self, number: int) -> Feed | None:
        """Return the run of that number, None where there is none."""
        self._scan()
        return self._feeds[number] if number in self._shown else None

    def _scan(self) -> None:
        with self._lock:
            if not self._pace.due:
                return
            with self._pace:
                found = [path for named in self._paths for path in self._runs_of(named)]
                self._shown = [self._number(path) for path in dict.fromkeys(found)]

    def _runs_of(self, path: Path) -> list[Path]:
        if path in self._ids and self._feeds[self._ids[path]].known:  # it stays, even when its folder has gone
            return [path]
        if holds_run(path):
            return [path]
        within = {child for child in self._ids if child.parent == path and self._feeds[self._ids[child]].known}
        found = sorted(within | set(children(path)), key=begun, reverse=True)[:MOST_RUNS]
        return found or [path]

    def _number(self, path: Path) -> int:
        if path not in self._ids:
            self._ids[path] = len(self._feeds)
            self._feeds.append(Feed(path, self._lang, self._tables, self._judging))
        return self._ids[path]
