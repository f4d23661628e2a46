"""How a monitor works, and how it ends a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.clip.base import Transform
from gradmedic.schedule import StepSchedule
from gradmedic.types import Sink

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding


class StepLimit(SystemExit):
    """The number of optimizer steps that the user asked for has been made; exits with code 0."""

    def __init__(self, steps: int) -> None:
        super().__init__(0)
        self.steps = steps


class StoppedByGuard(SystemExit):
    """A guard with `on_trip="stop"` has ended the run, whose folder is closed; exits with code 0."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


@dataclass(slots=True)
class Settings:
    """How a monitor works; `watch` and `watch_process` fill it in."""

    record: str | Path | None = None
    every: int | StepSchedule = 1
    transform: Transform | None = None
    flow: Mapping[str, Any] | None = None
    modules: str | list[str] | None = "auto"
    modules_every: int = 50
    limits: Any = None
    sinks: Sequence[Sink] = ()
    rules: Any = "default"
    budget: str | int = "256MB"
    on_finding: Callable[[Finding], None] | None = None
    backend: str = "auto"
    strict: bool = False
    lang: str = "en"
    stop_after: int | None = None
    join: bool = False
    overwrite: bool = False
    namespace: Callable[[], Mapping[str, Any]] | None = None
    groups: Any = None

    def describe(self) -> dict[str, Any]:
        """Return what the record says of them, JSON-ready."""
        return {
            "every": self.every if isinstance(self.every, int) else repr(self.every),
            "backend": self.backend,
            "limits": self.limits,
            "rules": self.rules if isinstance(self.rules, str) else [_named(each) for each in self.rules],
            "transform": None if self.transform is None else repr(self.transform),
            "flow": None if not self.flow else {name: repr(limit) for name, limit in self.flow.items()},
            "stop_after": self.stop_after,
        }


def ending(error: BaseException | None) -> str:
    """Return the reason for which a run has ended, as its record says it.

    Args:
        error: the exception that ended it; None, or an exit with code 0, if it came to its end.

    Returns:
        "finished", "interrupted", "exit code N", or "exception: Type".
    """
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        return f"exit code {error.code if isinstance(error.code, int) else 1}"
    return f"exception: {type(error).__name__}"


def _named(rule: Any) -> str:
    """Return a code, or code and name of a rule object; whoever gave it may have left either out."""
    return rule if isinstance(rule, str) else f"{getattr(rule, 'code', '?')} {getattr(rule, 'name', '')}".strip()
