"""Faults of our own stay our own: each part that fails is switched off, said once, and recorded.

A training run must never stop, or warn, because a monitor failed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from gradmedic.errors import MEANT_FOR_HOST
from gradmedic.user_errors import trouble_of

P = ParamSpec("P")
R = TypeVar("R")


class Sentence(Exception):
    """What is to be said of a part that failed is a whole sentence already: the fault is none of ours."""


class Isolation:
    """Which parts are switched off, and how long our own work has taken.

    Args:
        strict: raise instead of isolating (for tests).
        report: called once for each part that fails, with its name and the exception.

    Attributes:
        on_switched_off: told the name of each part that is switched off.
    """

    def __init__(self, strict: bool, report: Callable[[str, Exception], None]) -> None:
        self.strict = strict
        self.off: set[str] = set()
        self.seconds = 0.0
        self.on_switched_off: Callable[[str], None] | None = None
        self._report = report
        self._depth = 0

    def failed(self, part: str, error: Exception) -> None:
        """Switch a part off and report it; raises the error in strict mode."""
        if self.strict:
            raise error
        if part in self.off:
            return
        self.off.add(part)
        try:
            if self.on_switched_off is not None:
                self.on_switched_off(part)
            self._report(part, _in_words(part, error))
        except Exception:  # the report itself may fail (a closed stderr, a full disk): nothing is left to be done
            self.off.add("report")

    def enter(self) -> float:
        """Begin a stretch of our own work; nested stretches are counted once."""
        self._depth += 1
        return time.perf_counter()

    def leave(self, began: float) -> None:
        """End it."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - began


#: Parts in which code of the user's own runs, and what it means that they are off.
_OF_USERS = {
    "transform": "it is switched off, and gradients go untreated from here on",
    "on_finding": "it is called no more",
}


def _in_words(part: str, error: Exception) -> Exception:
    """Return what to report: a whole sentence where it is the user's own object that raised."""
    what = trouble_of(error) if part in _OF_USERS else None
    return error if what is None else Sentence(f"{what}; {_OF_USERS[part]}; training goes on")


def part(name: str) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R | None]]:
    """Isolate a method of an object that has an `isolation`: it fails once, is switched off, and then returns None."""

    def decorate(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R | None]:
        @functools.wraps(method)
        def guarded(self: Any, *args: P.args, **kwargs: P.kwargs) -> R | None:
            isolation: Isolation = self.isolation
            if name in isolation.off:
                return None
            began = isolation.enter()
            try:
                return method(self, *args, **kwargs)
            except MEANT_FOR_HOST:
                raise
            except Exception as error:
                isolation.failed(name, error)
                return None
            finally:
                isolation.leave(began)

        return guarded  # type: ignore[return-value]

    return decorate
