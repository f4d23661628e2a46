"""Makes a run folder ready for a new record: what an earlier run has left there is refused, joined or removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradmedic.errors import InputError
from gradmedic.record.layout import RUN_FILE, is_record, parse_name
from gradmedic.record.run import Run
from gradmedic.record.store import FolderStore
from gradmedic.record.strict_json import loads


def prepare(folder: Path, *, overwrite: bool, join: bool, rank: int, world: int) -> None:
    """Make a folder, and see that this rank can write to it.

    The ranks of a job come in any order, and none may remove what another has just begun. So each file has one rank
    that removes it: the one it is of, and where that is none of this job's, any (or the first, for the run file).

    Args:
        folder: is created, with its parents.
        overwrite: remove what an earlier run has left.
        join: write beside what is there.
        rank: of this process.
        world: number of ranks that write to the folder.

    Raises:
        InputError: the folder is a file, or holds a run (of this rank) that may not be touched.
        OSError: it could not be made, read or cleared.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; a run folder was expected. Choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    store = FolderStore(folder)
    names = [name for name in store.sizes() if is_record(name)]
    if overwrite:
        for name in names:
            if _removes(store, name, rank, world):
                store.remove(name)
    elif not join and any(world == 1 or _rank_of(name) == rank for name in names):  # run.json is whose came first
        raise InputError(
            f"run folder {str(folder)!r} already holds a run with {_steps_in(folder)} steps; choose another folder, "
            f"or replace that run with overwrite=True (on the command line: --overwrite)"
        )


def _removes(store: FolderStore, name: str, rank: int, world: int) -> bool:
    """Whether this rank is the one that removes a file of an earlier run."""
    if world == 1:
        return True
    if name == RUN_FILE:
        owner = _rank_in_run_file(store)
        return rank == (owner if owner is not None and owner < world else 0)
    owner = _rank_of(name)
    return owner is not None and (owner == rank or owner >= world)


def _rank_of(name: str) -> int | None:
    part = parse_name(name)
    return None if part is None else part.rank


def _rank_in_run_file(store: FolderStore) -> int | None:
    """Return the rank that wrote the run file; None where it cannot be told."""
    try:
        found: Any = loads(store.read(RUN_FILE))["rank"]
    except Exception:  # gone, torn, or of another tool
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _steps_in(folder: Path) -> int:
    try:
        return int(Run(FolderStore(folder), folder).steps.num_rows)
    except Exception:  # whatever is wrong with it, it is there
        return 0
