"""A command that is told to end while it writes: it puts away what is half done, and then ends as it was told to."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGXCPU") if hasattr(signal, name))


class _Told(BaseException):
    """A signal has come; raised where the main thread is, so that every `finally` on the way out runs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def putting_away() -> Iterator[None]:
    """Let `finally` blocks within run before a signal ends this process; its parent sees the signal all the same.

    Signals that are ignored (nohup) stay so. Outside the main thread, where no handler can be set, nothing changes.

    Example:
        >>> with putting_away():
        ...     pass
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    replaced = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    try:
        for number in replaced:
            signal.signal(number, _tell)
        yield
    except _Told as told:
        signal.signal(told.number, signal.SIG_DFL)
        os.kill(os.getpid(), told.number)
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _tell(number: int, _frame: FrameType | None) -> None:
    for each in _SIGNALS:  # a second one must not cut the tidying short
        signal.signal(each, signal.SIG_IGN)
    raise _Told(number)
