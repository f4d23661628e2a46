"""Results on file: JSON lines, one a run, so that a benchmark that was stopped goes on where it was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Key(NamedTuple):
    """Which run."""

    task: str
    setting: str
    method: str
    seed: int


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        accuracies: held-out accuracy at every look, 0 once the run has died.
        nan_at: step of the first batch with a NaN, -1 if there was none.
        skipped: number of steps that a guard skipped.
        clipped: number of steps that were clipped.
    """

    key: Key
    accuracies: tuple[float, ...]
    nan_at: int
    skipped: int
    clipped: int


def append(path: Path, runs: list[Run]) -> None:
    """Write runs at the end of the file, in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps([*run.key, list(run.accuracies), run.nan_at, run.skipped, run.clipped], separators=(",", ":"))
        for run in runs
    ]
    with path.open("ab+") as file:
        torn = file.tell() > 0 and (file.seek(-1, 2), file.read())[1] != b"\n"
        file.write(("\n" * torn + "".join(line + "\n" for line in lines)).encode())


def load(path: Path) -> dict[Key, Run]:
    """Read all runs; a line that a crash has cut off is passed over."""
    found: dict[Key, Run] = {}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            task, setting, method, seed, accuracies, nan_at, skipped, clipped = json.loads(line)
        except ValueError:
            continue
        key = Key(task, setting, method, seed)
        found[key] = Run(key, tuple(accuracies), nan_at, skipped, clipped)
    return found
