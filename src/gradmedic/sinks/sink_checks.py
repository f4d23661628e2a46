"""What is asked of a sink and of its numbers before anything runs."""

from __future__ import annotations

import sys
from typing import Any

from gradmedic.errors import InputError

_METHODS = ("emit", "emit_finding", "close")


def check_sink(sink: Any, argument: str) -> None:
    """Raise InputError for what is no sink: a class, or an object that lacks what will be called.

    Args:
        sink: what was given.
        argument: what it was given as, for the message.
    """
    if isinstance(sink, type):
        raise InputError(f"{argument}: expected a sink, got the class {sink.__name__}; make one: {sink.__name__}(...)")
    lacking = [name for name in _METHODS if not callable(getattr(sink, name, None))]
    if lacking:
        raise InputError(
            f"{argument}: {type(sink).__name__} lacks {', '.join(lacking)}; a sink has emit(frame), "
            "emit_finding(finding) and close()"
        )


def check_seconds(value: Any, argument: str) -> None:
    """Raise InputError unless it is a finite number of at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:
        raise InputError(f"{argument}: expected a finite number of seconds, at least 0, got {_shown(value)}")


def check_count(value: Any, argument: str, least: int) -> None:
    """Raise InputError unless it is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{argument}: expected a whole number of at least {least}, got {_shown(value)}")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # a repr may raise what it likes
        return f"something of type {type(value).__name__}"
