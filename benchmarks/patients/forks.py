"""Processes forked from one that has imported torch: a fresh interpreter's state in milliseconds instead of seconds.

The process that forks has no threads (but that of pyarrow's allocator, which knows about forks) and has never run a
backward pass; its copies therefore start as a new python would after the same imports, and nothing leaks from one run
into the next.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Fork:
    """One child process.

    Attributes:
        pid: of the child, which leads a process group of its own.
        deadline: monotonic seconds after which it is killed.
        began: monotonic seconds.
        code: exit code; minus the signal's number when a signal ended it; None while it runs.
        seconds: how long it ran; `cpu` is the processor time of it and of all that it waited for.
        timed_out: whether it was killed for it.
    """

    pid: int
    deadline: float
    began: float
    code: int | None = None
    seconds: float = 0.0
    cpu: float = 0.0
    timed_out: bool = False

    def poll(self) -> bool:
        """Return whether the child has ended; end it, with all that it started, when its time is over."""
        if self.code is not None:
            return True
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0 and time.monotonic() > self.deadline:
            self.timed_out = True
            self._kill()
            pid, status, usage = os.wait4(self.pid, 0)
        if pid == 0:
            return False
        self.cpu = usage.ru_utime + usage.ru_stime
        self.seconds = time.monotonic() - self.began
        self.code = os.waitstatus_to_exitcode(status)
        self._kill()  # what it may have left behind
        return True

    def end(self) -> None:
        """Kill the child if it still runs."""
        if self.code is None:
            self._kill()
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def fork(body: Callable[[], int], folder: Path, output: Path, timeout: float) -> Fork:
    """Run `body` in a child process.

    Args:
        body: what the child does; it returns the exit code.
        folder: the child's working directory.
        output: file that takes its standard output and error, appended.
        timeout: seconds after which it is killed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    now = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(body, folder, output)
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)  # in both, so that it holds whoever comes first
    return Fork(pid, now + timeout, now)


def _child(body: Callable[[], int], folder: Path, output: Path) -> None:
    """Never returns."""
    code = 1
    try:
        with suppress(PermissionError):
            os.setpgid(0, 0)
        # A benchmark in the background of a shell ignores interrupts; a script that is run by hand does not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _redirect(output)
        os.chdir(folder)
        code = body()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code & 0xFF)


def _redirect(output: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # The objects of the parent may be terminals in its eyes, or captured ones.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
