"""Which threads train: may this one look at the gradients, and is the loss that it has just brought one of ours?"""

from __future__ import annotations

import threading


class StepThreads:
    """Remembers the threads that have stepped a watched optimizer, and those that have stepped another."""

    def __init__(self) -> None:
        self._home = threading.get_ident()
        self._steppers: set[int] = set()
        self._strangers: set[int] = set()

    def steps(self) -> None:
        """This thread steps what is watched."""
        self._steppers.add(threading.get_ident())

    def steps_another(self) -> None:
        """This thread has stepped what is not watched."""
        self._strangers.add(threading.get_ident())

    def alone(self) -> bool:
        """Whether this thread is the only one that steps what we watch, so that it may look at the gradients now.

        Torch lets other threads replace `.grad` and write to it without a lock: to read it meanwhile can crash.
        """
        return (self._steppers or {self._home}) == {threading.get_ident()}

    def foreign(self) -> bool:
        """Whether this thread trains something else, and something else only."""
        thread = threading.get_ident()
        return bool(self._steppers) and thread not in self._steppers and thread in self._strangers
