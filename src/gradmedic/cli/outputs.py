"""Files that commands write: never over the record that they read, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gradmedic.cli.ending import putting_away
from gradmedic.errors import InputError


def check_output(asked: str, folders: Iterable[str | Path]) -> Path:
    """Return the file that was asked for, links followed.

    Args:
        asked: what stands after `--output`.
        folders: run folders that are being read.

    Raises:
        InputError: it is a folder, lies in one of the run folders, or its own folder does not exist.
    """
    try:
        file = Path(asked).resolve()
        if file.is_dir():
            raise InputError(f"--output expects a file, but {asked} is a folder; name a file in it")
        if not file.parent.is_dir():
            raise InputError(f"--output expects a file in a folder that exists, but there is no {file.parent}")
        inside = [folder for folder in folders if Path(folder).resolve() in file.parents]
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL
        raise InputError(f"--output: cannot write {asked[:80]!r}: {error}") from error
    if inside:
        raise InputError(f"--output: {asked} lies in the run folder {inside[0]}, the record; name another place")
    return file


def write_output(file: Path, text: str) -> None:
    """Write a file whole: an older one stays until the new one is complete. A pipe or a device is written through.

    Raises:
        InputError: it cannot be written.
    """
    try:
        if file.exists() and not file.is_file():
            with file.open("w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
            return
        with putting_away():
            _replace(file, text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {str(file)[:120]}: {reason}") from error


def _replace(file: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".gradmedic-", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
