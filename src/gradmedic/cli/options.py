"""What `gradmedic run` was asked for, in a form that also travels to the processes that the script starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from gradmedic.errors import InputError


@dataclass(frozen=True)
class RunOptions:
    """The options of `gradmedic run`.

    Attributes:
        record: absolute path of the run folder; None keeps the run in memory.
        every: which steps get the full per-tensor table.
        steps: end after so many optimizer steps; None: never.
        modules: patterns of modules to probe; "auto", or None for none.
        clip: specification of a transform (`transform_spec`), None for none.
        guard: whether to guard the run.
        limits: alarms: a norm for the whole model (key ""), or for the tensors that a pattern matches.
        budget: bound on the run folder's size.
        lang: language of messages.
        fail_on: severity from which findings make the exit code 1; None: never.
        quiet: whether to say nothing but errors.
        probe: whether to make active probes at the second and the last step.
        sinks: where live numbers also go: KIND or KIND:TARGET each (`sink_options`).
        sink_claim: the file by which one process of the run takes the sinks; None without sinks.
    """

    record: str | None = None
    every: int = 1
    steps: int | None = None
    modules: str | list[str] | None = "auto"
    clip: str | None = None
    guard: bool = False
    limits: dict[str, float] = field(default_factory=dict)
    budget: str = "256MB"
    lang: str = "en"
    fail_on: str | None = None
    quiet: bool = False
    probe: bool = False
    sinks: list[str] = field(default_factory=list)
    sink_claim: str | None = None

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{key: value for key, value in values.items() if key in cls.__dataclass_fields__})


def parse_limits(words: list[str]) -> dict[str, float]:
    """Read `--limit`: "10" for the whole model (key ""), "encoder.*=5" for what a pattern matches.

    Raises:
        InputError: when a limit is not a positive number, or both kinds are given.
    """
    limits: dict[str, float] = {}
    for word in words:
        pattern, _, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not 0 < value < float("inf"):
            raise InputError(f'--limit expects a positive norm, as in 10 or "encoder.*=5", got {word!r}')
        limits[pattern] = value
    if "" in limits and len(limits) > 1:
        raise InputError(f"--limit expects one norm for the whole model, or norms for patterns, got both: {words}")
    return limits


def parse_modules(words: list[str]) -> str | list[str] | None:
    """Read `--modules`: patterns; "auto" and "off" stand alone."""
    if not words or words == ["auto"]:
        return "auto"
    if words == ["off"]:
        return None
    if "auto" in words or "off" in words:
        raise InputError(f'--modules expects patterns, or "auto" or "off" alone, got {words}')
    return words
