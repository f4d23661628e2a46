"""What is read of a run folder, and when."""

from __future__ import annotations

from pathlib import Path

from gradmedic.record.layout import is_record
from gradmedic.record.store import FolderStore

_LARGE = ("tensors-", "modules-")


class ScalarsStore(FolderStore):
    """A run folder without its tensor and module tables: kilobytes to read where the whole has megabytes."""

    def sizes(self) -> dict[str, int]:
        return {name: size for name, size in super().sizes().items() if not name.startswith(_LARGE)}


def holds_run(folder: Path) -> bool:
    """Whether there is a run record in a folder; False where it cannot be read."""
    try:
        return any(is_record(entry.name) for entry in folder.iterdir())
    except OSError:
        return False


def begun(folder: Path) -> float:
    """Return when a run began, unix seconds: its run file is written once, at its beginning. 0.0 where unknown."""
    for path in (folder / "run.json", folder):
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0


def changed_at(folder: Path) -> float:
    """Return when a file last came into a folder or went from it, unix seconds; -1.0 where that cannot be told."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return -1.0


def children(folder: Path) -> list[Path]:
    """Return the folders within one that hold a run; links, which may lead anywhere, are left out."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.is_symlink() and entry.is_dir()]
    except OSError:
        return []
    return [entry for entry in entries if holds_run(entry)]
