"""Where a run is recorded: the default folder, what may be overwritten, and how ranks agree on one folder."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gradmedic.errors import InputError
from gradmedic.process_rank import goes_on
from gradmedic.process_rank import rank_of as rank_of

#: What a run folder holds; nothing else in a folder is ever removed.
RECORD_FILES = re.compile(r"run(-.*)?\.json|(steps|tensors|modules)-.*\.arrows|events-.*\.jsonl")

_OTHERWISE = "name another place with --record"


def record_files(folder: Path) -> list[Path]:
    """Return the files of a run record in a folder; empty when the folder is not there."""
    try:
        return sorted(entry for entry in folder.iterdir() if RECORD_FILES.fullmatch(entry.name))
    except OSError:
        return []


def holds_run(folder: Path) -> bool:
    """Return whether there is a run record in a folder."""
    return bool(record_files(folder))


def default_folder(name: str, environment: Mapping[str, str], now: float | None = None) -> Path:
    """Return the folder for a run nobody named: `runs/<name>-<date>-<time>`, or what all ranks of a job arrive at.

    Args:
        name: short name of the script.
        environment: GRADMEDIC_RUN_DIR decides if set. Ranks share TORCHELASTIC_RUN_ID and MASTER_PORT; torchrun's
            default id "none" is the same for all jobs, the process that started the ranks is not.
        now: unix seconds; the present by default.
    """
    named = environment.get("GRADMEDIC_RUN_DIR")
    if named:
        return Path(named)
    safe = re.sub(r"[^\w.-]+", "_", name)
    if rank_of(environment)[1] > 1:
        job = environment.get("TORCHELASTIC_RUN_ID", "none")
        job = f"job{os.getppid()}" if job == "none" else re.sub(r"[^\w.-]+", "_", job)
        return Path("runs") / f"{safe}-{job}-{environment.get('MASTER_PORT', '0')}"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    folder = Path("runs") / f"{safe}-{stamp}"
    number = 2
    while folder.exists():
        folder = Path("runs") / f"{safe}-{stamp}-{number}"
        number += 1
    return folder


def claim(folder: Path, *, overwrite: bool) -> None:
    """Make sure that a folder the user named can take a new run, before anything is run.

    A job that its launcher has started anew goes on in the folder that it began.

    Raises:
        InputError: when it holds a run and `overwrite` is False, is not a folder, or cannot be written to.
    """
    check_possible(folder)
    old = [] if goes_on(folder, os.environ) else record_files(folder)
    if old and not overwrite:
        raise InputError(f"{folder} already holds a run; name another folder, or replace it with --overwrite")
    for file in old:
        file.unlink()


def check_possible(folder: Path) -> None:
    """Make sure that a run folder is there, or can be made; what was made to find out is removed again.

    A full disk is no obstacle: the record waits for room.

    Raises:
        InputError: it is no folder, cannot be written to, or could not be made.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--record expects a folder, but {folder} is a file; name another one")
        nearest = folder
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            reason = f"{nearest} is not a folder that can be written to"
            raise InputError(f"cannot create files in {folder}: {reason}; {_OTHERWISE}")
        if nearest != folder:
            _try(nearest, folder.relative_to(nearest))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            why = error.strerror or error
            raise InputError(f"cannot create the run folder {str(folder)[:120]}: {why}; {_OTHERWISE}") from error


def _try(nearest: Path, rest: Path) -> None:
    """Make folders of the same names within a temporary one: processes beside us may be about to make the real ones.

    Where file systems make folders of their own accord (/proc), permissions promise more than can be done.
    """
    trial = tempfile.mkdtemp(prefix=".gradmedic-", dir=nearest)
    try:
        if os.pardir not in rest.parts:
            (Path(trial) / rest).mkdir(parents=True)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
