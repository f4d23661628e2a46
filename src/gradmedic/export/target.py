"""Where an export goes: all files of it or none, and nothing that was there before unless asked."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gradmedic.errors import InputError


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Give a folder to write into, and put what was written into `target` when all of it is there.

    Args:
        target: the folder that is to hold the files; it may be there already.
        force: replace files of the same names; others always stay.

    Yields:
        An empty folder beside `target`.

    Raises:
        InputError: `target` is a file, cannot be written to, or holds a file of a name that was written.
    """
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; name a folder with -o")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise InputError(f"{target} is not empty; name another folder with -o, or replace its files with --force")
    work = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
    except OSError as error:
        raise InputError(f"cannot write to {target.parent}: {error.strerror or error}; name another folder") from error
    try:
        yield work
        _publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, target: Path) -> None:
    if not target.exists():
        os.rename(work, target)
        return
    for file in sorted(path for path in work.rglob("*") if path.is_file()):
        place = target / file.relative_to(work)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
