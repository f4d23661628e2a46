"""A run folder of which only some files are seen, so that `Run` reads what is wanted and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradmedic.errors import InputError
from gradmedic.record.layout import parse_name
from gradmedic.record.run import Run, open_run
from gradmedic.record.store import FolderStore


class NarrowedStore(FolderStore):
    """The files of a folder whose names a test lets through; for reading only.

    Args:
        folder: the run folder.
        seen: whether a file of that name is there.
    """

    def __init__(self, folder: Path, seen: Callable[[str], bool]) -> None:
        super().__init__(folder)
        self._seen = seen

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file that is let through."""
        return {name: size for name, size in super().sizes().items() if self._seen(name)}


def is_light(name: str) -> bool:
    """Whether a file holds scalars, events or what is known of the run: all but the large tables."""
    parts = parse_name(name)
    return parts is None or parts.kind not in ("tensors", "modules")


def open_light(path: Path) -> Run:
    """Open a run folder without its tensor and module tables, which then read as empty.

    Raises:
        InputError: as from `open_run`.
    """
    return open_narrowed(path, is_light)


def open_narrowed(path: Path, seen: Callable[[str], bool]) -> Run:
    """Open those files of a run folder that a test lets through.

    Raises:
        InputError: there is no such folder, it holds no run, or it cannot be listed.
    """
    if not path.is_dir() or not any(path.glob("*")):
        open_run(path)  # says what is wrong
    try:
        return Run(NarrowedStore(path, seen), path)
    except OSError as error:
        raise InputError(f"run folder {str(path)!r} cannot be read: {error.strerror or error}") from error
