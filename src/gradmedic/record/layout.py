"""What the files of a run folder are called.

::

    run.json  run-<rank>-<process>.json
    steps-<rank>-<process>-<segment>.arrows     tensors-…  modules-…
    events-<rank>-<process>.jsonl

`<process>` is the process id in hexadecimal and a random part, so that no two processes on any two machines share a
file. Segments count from 0; thinned ones keep the number of the first that went into them.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass

RUN_FILE = "run.json"

_NAME = re.compile(
    r"(?P<kind>steps|tensors|modules|events|run)-(?P<rank>\d+)-(?P<process>[0-9a-f]+x[0-9a-f]+)"
    r"(?:-(?P<segment>\d+))?\.(?P<suffix>arrows|jsonl|json)"
)
_SUFFIXES = {"steps": "arrows", "tensors": "arrows", "modules": "arrows", "events": "jsonl", "run": "json"}


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """The parts of one file's name."""

    kind: str
    rank: int
    process: str
    segment: int


def new_process_id() -> str:
    """Return a name for this process that no other one has."""
    return f"{os.getpid():x}x{secrets.token_hex(4)}"


def part_name(kind: str, rank: int, process: str, segment: int | None = None) -> str:
    """Return the file name of a part."""
    number = "" if segment is None else f"-{segment:05d}"
    return f"{kind}-{rank}-{process}{number}.{_SUFFIXES[kind]}"


def parse_name(name: str) -> PartName | None:
    """Return the parts of a file name, None for a file that is not part of a record."""
    match = _NAME.fullmatch(name)
    if match is None or _SUFFIXES[match["kind"]] != match["suffix"]:
        return None
    if (match["suffix"] == "arrows") != (match["segment"] is not None):
        return None
    return PartName(match["kind"], int(match["rank"]), match["process"], int(match["segment"] or 0))


def is_record(name: str) -> bool:
    """Whether a file, temporary ones included, belongs to a record."""
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:-4].split(".json.")[0] + ".json" if ".json." in name else name[1:-4]
    return name == RUN_FILE or parse_name(name) is not None
