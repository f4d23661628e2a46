"""Who begins a record in a folder: one process at a time, for a moment. What a killed one has left is taken over."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from gradmedic.integrations.writers import has_run_since

#: In a folder whose record is just being begun; says by which process. There for a moment.
CLAIM = ".gradmedic-begins"
#: Beside the claim of a process that is no more, while another takes it over.
_TURN = ".gradmedic-begins-again"
#: Seconds after which a claim is left over of which nobody knows whose it is.
_LONG = 3600.0


def claim(folder: Path) -> bool:
    """Begin a record in a folder; False where another process does. `release` gives it back. May raise OSError."""
    mark, turn = folder / CLAIM, folder / _TURN
    if _create(mark):
        return True
    text = _read(mark)
    if not _is_left(mark, text) or not _create(turn):
        return False
    # Several may have seen what is left. Only who has the turn may replace it, and only as long as it is the same.
    if _read(mark) != text:
        turn.unlink()
        return False
    os.replace(turn, mark)
    return True


def release(folder: Path) -> None:
    """Give back a claim; may raise OSError."""
    (folder / CLAIM).unlink()


def is_claimed(folder: Path) -> bool:
    """Whether a process is just beginning a record in a folder."""
    mark = folder / CLAIM
    return mark.exists() and not _is_left(mark, _read(mark))


def _create(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    try:
        os.write(handle, f"{os.getpid()} {time.time()} {socket.gethostname()}".encode())
    finally:
        os.close(handle)
    return True


def _read(mark: Path) -> str | None:
    try:
        return mark.read_text(errors="replace")
    except OSError:
        return None


def _is_left(mark: Path, text: str | None) -> bool:
    """Whether the process that made a claim is no more, so that nobody will give it back."""
    try:
        pid, moment, host = (text or "").split(" ", 2)
        if host == socket.gethostname() and os.name == "posix":
            return not has_run_since(int(pid), float(moment))
    except ValueError:  # not written to the end
        pass
    try:
        return time.time() - mark.stat().st_mtime > _LONG
    except OSError:
        return False
