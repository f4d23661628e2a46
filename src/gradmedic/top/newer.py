"""Runs that lie beside the one that is watched: the newest when watching begins, and those that begin later."""

from __future__ import annotations

import os
from pathlib import Path

from gradmedic.record.layout import is_record


def newest_run(folder: Path) -> tuple[Path | None, int]:
    """Return (the run folder, how many others lie beside it): the folder itself, or the newest run within it."""
    if holds_run(folder):
        return folder, 0
    try:
        inside = [entry for entry in folder.iterdir() if entry.is_dir() and holds_run(entry)]
    except OSError:
        return None, 0
    newest = max(inside, key=_last_change, default=None)
    return newest, max(0, len(inside) - 1)


class Neighbours:
    """Tells of runs that begin in a folder after watching has begun; what counts is that they were not there before.

    Times of files are not asked: they come from clocks that may be set, or be another machine's.

    Args:
        parent: the folder that holds the runs.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._known = self._folders()
        self.newest: Path | None = None

    def look(self) -> Path | None:
        """Return the run that began last since watching began, None when there is none; one listing of a folder."""
        for name in sorted(self._folders() - self._known):
            if holds_run(self._parent / name):
                self._known.add(name)
                self.newest = self._parent / name
        return self.newest

    def _folders(self) -> set[str]:
        try:
            with os.scandir(self._parent) as entries:
                return {entry.name for entry in entries if entry.is_dir()}
        except OSError:
            return set()


def holds_run(folder: Path) -> bool:
    """Whether a folder is a run folder."""
    try:
        return any(
            is_record(entry.name) and not entry.name.startswith(".") and not entry.is_fifo()
            for entry in folder.iterdir()
        )
    except OSError:
        return False


def _last_change(folder: Path) -> float:
    try:
        return max(entry.stat().st_mtime for entry in folder.iterdir())
    except (OSError, ValueError):
        return 0.0
