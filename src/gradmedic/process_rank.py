"""Which of how many processes of a job this one is."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def rank_and_world() -> tuple[int, int]:
    """Return (rank, number of ranks): of torch.distributed where it runs, else as the launcher says; (0, 1) alone.

    torch.distributed is not imported for this: where nobody has, it does not run.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return rank_of(os.environ)


def several_ranks() -> bool:
    """Whether this process is one of several that torch.distributed has joined."""
    distributed: Any = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and bool(distributed.is_available() and distributed.is_initialized())
        and int(distributed.get_world_size()) > 1
    )


def job_of(environment: Mapping[str, str]) -> str | None:
    """Return what the processes of one launcher on this machine have in common; None for a process of its own.

    It stays the same when the launcher starts its processes anew, after one of them has died or others have come.
    """
    if rank_of(environment)[1] < 2:
        return None
    launcher = os.getppid()
    try:
        with open(f"/proc/{launcher}/stat", encoding="utf-8", errors="replace") as stream:
            began = stream.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # no such file on this system: process ids come again, but seldom soon
        began = ""
    return f"{environment.get('TORCHELASTIC_RUN_ID', '')}@{socket.gethostname()}/{launcher}/{began}"


def is_restart(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process in place of one that has ended."""
    try:
        return int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    except ValueError:
        return False


def goes_on(folder: Path, environment: Mapping[str, str]) -> bool:
    """Whether this process is one of a job that has written to a run folder before, and was started anew."""
    if is_restart(environment):
        return True
    job = job_of(environment)
    if job is None:
        return False
    try:
        meta = json.loads((folder / "run.json").read_bytes())
        return bool(meta.get("job") == job and meta.get("pid") != os.getpid())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, world size) as torchrun and its kin set them; (0, 1) without them."""
    try:
        return int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
