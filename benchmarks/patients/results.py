"""Results on file: JSON lines, one a run, so that a benchmark that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "patients.jsonl"

Line = dict[str, Any]


def append(path: Path, line: Line) -> None:
    """Write a run at the end of the file, in one go, on a line of its own even after a torn one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
    with path.open("ab+") as file:
        torn = file.tell() > 0 and (file.seek(-1, 2), file.read())[1] != b"\n"
        file.write(("\n" * torn + text).encode())


def load(path: Path) -> list[Line]:
    """Read all runs, the latest of each patient and seed; a line that was cut off is passed over."""
    found: dict[tuple[str, int], Line] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
            found[line["id"], line["seed"]] = line
        except (ValueError, KeyError, TypeError):
            continue
    return list(found.values())


def keys(lines: Iterable[Line]) -> set[tuple[str, int]]:
    """Return (id, seed) of each."""
    return {(line["id"], line["seed"]) for line in lines}
