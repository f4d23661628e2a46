"""Quiet for a while: what we run ourselves, on the host's own model, is not a part of its training.

Hooks and patches stay where they are and do nothing in this thread: to take them off and put them on again would lose
what they have seen so far, and make compiled graphs anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_state = threading.local()


@contextmanager
def muted() -> Iterator[None]:
    """Let no hook of ours hear anything in this thread; may be nested."""
    before = is_muted()
    _state.on = True
    try:
        yield
    finally:
        _state.on = before


def is_muted() -> bool:
    """Whether hooks must hear nothing in this thread now."""
    return bool(getattr(_state, "on", False))
