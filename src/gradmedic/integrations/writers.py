"""Whether a process still writes a run: what nobody may replace, even where replacing is asked for."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

#: The event that ends a record is the last one of its file; so much of that is read.
_TAIL = 65536
#: Seconds by which a clock and the kernel's count of ticks may differ.
_SLACK = 5.0
#: States of processes that run no more: killed and not waited for, or on their way out.
_ENDED = ("Z", "X", "x")


def is_written(folder: Path) -> bool:
    """Whether a process of this machine has a record in a folder that it has not closed; of others nothing is known."""
    from gradmedic.record.layout import RUN_FILE, parse_name
    from gradmedic.record.recorder import writes_into
    from gradmedic.record.store import FolderStore

    if writes_into(folder):
        return True
    store = FolderStore(folder)
    try:
        sizes = store.sizes()
    except OSError:
        return False
    parts = {name: parse_name(name) for name in sizes}
    runs = [name for name, part in parts.items() if name == RUN_FILE or (part is not None and part.kind == "run")]
    return any(_goes_on(store, name, sizes) for name in runs)


def _goes_on(store: Any, name: str, sizes: dict[str, int]) -> bool:
    from gradmedic.record.layout import part_name
    from gradmedic.record.strict_json import loads

    try:
        meta = loads(store.read(name))
        pid, created = int(meta["pid"]), float(meta["created"])
        events = part_name("events", int(meta["rank"]), str(meta["process"]))
        if meta["host"] != socket.gethostname() or pid == os.getpid() or not has_run_since(pid, created):
            return False
        tail = store.read(events, max(0, sizes[events] - _TAIL)) if events in sizes else b""
        return b'"kind":"end"' not in tail.splitlines()[-1] if tail else True
    except Exception:  # torn, of another tool, replaced just now: nobody that we know of
        return False


def has_run_since(pid: int, moment: float) -> bool:
    """Whether a process has run from before a moment (unix seconds) till now; numbers of processes are used again."""
    if os.name != "posix":  # where signal 0 is none that only asks
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except OSError:
        return False
    fields = _status(pid)
    if fields is None:
        return True
    # One that has been killed can be asked still where nobody waits for it, as in a container without an init process.
    return fields[0] not in _ENDED and _beginning(fields) < moment + _SLACK


def _status(pid: int) -> list[str] | None:
    """Return the fields of a process's status, its state first; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields or None


def _beginning(fields: list[str]) -> float:
    """Return when a process of that status began, unix seconds; long ago where the system does not tell."""
    try:
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return float(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
