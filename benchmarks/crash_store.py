"""Results on file: JSON lines, one a run, so that a benchmark that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple


class Key(NamedTuple):
    """Which run; `faulty` is False for the control, without faults."""

    arm: str
    seed: int
    faulty: bool


class Crash(NamedTuple):
    """One crash: the step at which it was noticed, how it showed, the last fault before it ("" if there was none)."""

    step: int
    sign: str
    cause: str


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        steps: steps that were executed.
        crashes: what went wrong for good.
        faults: number of faults of each kind that the run met.
        lost: steps that restarts threw away.
        held_out: loss on held-out text at the end, in nats for each masked word.
        withheld: steps that the loss scaler withheld.
        skipped: steps that the guard skipped.
        clipped: steps that the guard clipped.
    """

    key: Key
    steps: int
    crashes: tuple[Crash, ...]
    faults: dict[str, int]
    lost: int
    held_out: float
    withheld: int
    skipped: int
    clipped: int

    def crashes_by_cause(self) -> Counter[str]:
        """Return how many crashes each kind of fault was the last before."""
        return Counter(crash.cause for crash in self.crashes)


def append(path: Path, run: Run) -> None:
    """Write a run at the end of the file, in one go, on a line of its own even after a torn one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(asdict(run), separators=(",", ":")) + "\n"
    with path.open("ab+") as file:
        torn = file.tell() > 0 and (file.seek(-1, 2), file.read())[1] != b"\n"
        file.write(("\n" * torn + line).encode())


def load(path: Path, steps: int) -> dict[Key, Run]:
    """Read all runs of so many steps; a line that was cut off is passed over."""
    found: dict[Key, Run] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        row["key"] = Key(*row["key"])
        row["crashes"] = tuple(Crash(*each) for each in row["crashes"])
        run = Run(**row)
        if run.steps == steps:
            found[run.key] = run
    return found
