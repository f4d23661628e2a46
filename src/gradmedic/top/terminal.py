"""The terminal as a keyboard: single keys without echo, and the terminal as it was however this ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from gradmedic.top.keys import decode_keys

try:
    import termios
    import tty
except ImportError:  # Windows has neither; keys then do nothing, and Ctrl-C ends the view
    termios = None  # type: ignore[assignment]
    tty = None  # type: ignore[assignment]

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Keyboard:
    """Reads keys, and says when a signal asks for something; use it as a context manager in the main thread.

    Args:
        file: the terminal's input; keys are read only where it is a terminal.

    Attributes:
        ended_by: the signal that asked to end, None as long as there was none.
    """

    def __init__(self, file: Any = None) -> None:
        self._file = sys.stdin if file is None else file
        self._descriptor: int | None = None
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1
        self.ended_by: int | None = None
        self._suspended = False

    def __enter__(self) -> Keyboard:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            if termios is not None and self._file.isatty():
                self._descriptor = self._file.fileno()
        if termios is not None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            # A signal must end the waiting in `select`, whatever its handler does.
            self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _ENDING:
            self._handle(number, self._end)
        if hasattr(signal, "SIGWINCH"):
            self._handle(signal.SIGWINCH, lambda *_: None)
        if hasattr(signal, "SIGTSTP"):
            self._handle(signal.SIGTSTP, self._ask_to_suspend)
        self._cbreak()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            for end in self._pipe:
                os.close(end)

    def wait(self, timeout: float) -> list[str]:
        """Return the keys that are pressed within `timeout` seconds; returns early at a key or a signal."""
        if self._pipe is None:
            time.sleep(max(0.0, timeout))
            return []
        watched = [self._pipe[0], *([self._descriptor] if self._descriptor is not None else [])]
        ready, _, _ = select.select(watched, [], [], max(0.0, timeout))
        if self._pipe[0] in ready:
            with contextlib.suppress(OSError):
                os.read(self._pipe[0], 4096)
        if self._descriptor is None or self._descriptor not in ready:
            return []
        try:
            data = os.read(self._descriptor, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal has been closed
            self._descriptor = None
            self.ended_by = self.ended_by or signal.SIGTERM
        return decode_keys(data)

    def suspend_if_asked(self, leave: Callable[[], None], enter: Callable[[], None]) -> bool:
        """Stop the process if Ctrl-Z asked for it; return whether it did, once it goes on.

        Args:
            leave, enter: give the screen back before, and take it again after.
        """
        if not self._suspended:
            return False
        self._suspended = False
        with self._left_alone(leave, enter):
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._ask_to_suspend)
        return True

    @contextlib.contextmanager
    def _left_alone(self, leave: Callable[[], None], enter: Callable[[], None]) -> Iterator[None]:
        leave()
        self._restore()
        try:
            yield
        finally:
            self._cbreak()
            enter()

    def _cbreak(self) -> None:
        if self._descriptor is None:
            return
        with contextlib.suppress(termios.error, OSError):
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)

    def _restore(self) -> None:
        if self._descriptor is None or self._before is None:
            return
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        self._before = None

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handlers[number] = signal.signal(number, handler)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number

    def _ask_to_suspend(self, _number: int, _frame: FrameType | None) -> None:
        self._suspended = True
