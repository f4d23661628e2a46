"""Folders for the runs of a trainer that trains more than once, in one process or in several at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradmedic.integrations.claims import claim, is_claimed, release
from gradmedic.integrations.writers import is_written


def free_folder(record: str | Path | None) -> str | Path | None:
    """Return a run folder that holds no run yet: the one that is asked for, or `<it>-2`, `<it>-3` …

    A trainer is often run twice in one program. Ranks of a job share a folder, which is taken as it is.
    """
    if record is None or _is_shared() or not _is_taken(Path(record)):
        return record
    number = 2
    while _is_taken(Path(f"{record}-{number}")):
        number += 1
    return f"{record}-{number}"


def folder_to_replace(record: str | Path | None, own: Collection[str]) -> str | Path | None:
    """Return a run folder whose record may be replaced: the one that is asked for, or `<it>-2`, `<it>-3` …

    Args:
        record: the folder that is asked for.
        own: what the same trainer has written before: its second training replaces no first one, so that a program
            that is run again finds the same folders. Nor is a record replaced that a process still writes.
    """
    if record is None:
        return None
    number, folder = 1, record
    while str(folder) in own or (not _is_shared() and _is_busy(Path(folder))):
        number += 1
        folder = f"{record}-{number}"
    return folder


@contextmanager
def sole(folder: str | Path | None, *, replace: bool = False) -> Iterator[bool]:
    """Begin a record in a folder while no other trainer can; says whether the folder is ours.

    The processes of a grid search look for a free folder at the same moment, and all find the same one.

    Args:
        folder: as `free_folder` or, to replace what it holds, `folder_to_replace` has returned it.
        replace: whether a run may be in it.
    """
    if folder is None or _is_shared():
        yield True
        return
    place = Path(folder)
    made = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
        free = claim(place)
    except OSError:  # a file, or a folder that cannot be written: the recorder says it better
        yield True
        return
    if not free:
        yield False
        return
    try:
        yield not (is_written(place) if replace else _holds_run(place))
    finally:
        with suppress(OSError):
            release(place)
            if made:
                place.rmdir()  # which fails where a record has begun


def _is_busy(folder: Path) -> bool:
    return is_claimed(folder) or is_written(folder)


def _is_taken(folder: Path) -> bool:
    return _holds_run(folder) or is_claimed(folder)


def _holds_run(folder: Path) -> bool:
    from gradmedic.cli.folders import holds_run

    return holds_run(folder)


def _is_shared() -> bool:
    from gradmedic.process_rank import rank_and_world

    return rank_and_world()[1] > 1
