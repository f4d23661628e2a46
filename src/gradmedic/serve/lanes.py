"""Work that is done beside the answering: one piece at a time in each lane, and nobody waits for it at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Lane:
    """Runs pieces of work one after the other, in threads that do not keep the process alive.

    The pool of `concurrent.futures` would: Ctrl-C had then to wait until a long run is judged.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Begin the work as soon as what came before it is done; returns at once."""
        threading.Thread(target=self._in_turn, args=(work,), name=f"gradmedic-{self._name}", daemon=True).start()

    def _in_turn(self, work: Callable[[], None]) -> None:
        with self._turn:
            work()
