"""The threads that torch computes with, for the compiled kernel: found in the OpenMP runtime that torch has loaded.

No second runtime comes into the process, and no thread of ours competes with torch's, which spin for some milliseconds
after each of its loops. Only where that runtime offers GNU's entry point, which those of gcc, LLVM and Intel do on
Linux; elsewhere the kernel starts threads of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from pathlib import Path

import torch

_TASKS = "/proc/self/task"
_STATUS = "/proc/self/stat"
#: The kernel's PF_FORKNOEXEC among a process's flags: forked, and no other program begun since.
_FORKED = 0x40


def is_forked() -> bool:
    """Return whether this process was forked, and goes on with the program of its parent."""
    try:
        with open(_STATUS, "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _FORKED)
    except (OSError, ValueError, IndexError):
        return False


#: Process whose threads may be used; 0: none.
_PROCESS = 0 if is_forked() else os.getpid()


class TorchThreads:
    """Knows whether the kernel may use torch's threads in this process."""

    def __init__(self) -> None:
        self._seen = False

    def entry(self, wanted: int) -> int:
        """Return the address of the runtime's GOMP_parallel, for the compiled kernel; 0: use threads of your own.

        A forked child has none of its parent's threads, but GNU's runtime, which is not told of the fork, would wait
        for them for ever. Such a child is known by its process id, or, if it has imported this file itself, by what
        Linux says of it. Where Linux says nothing, the threads that are not there tell; others (of NumPy's BLAS, of
        Arrow) may be.

        Args:
            wanted: how many threads may work; where these are fewer than torch's own, torch's are not used.
        """
        if wanted < max(2, torch.get_num_threads()) or os.getpid() != _PROCESS:
            return 0
        if not self._seen:
            self._seen = _native_threads() >= torch.get_num_threads() - 1
        return _address() if self._seen else 0


def _native_threads() -> int:
    """Return how many threads of this process Python has not started."""
    try:
        return len(os.listdir(_TASKS)) - threading.active_count()
    except OSError:
        return 0


@cache
def _address() -> int:
    if sys.platform != "linux" or "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return 0
    try:
        # A symbol is looked for in this library, then in what it was linked with: that is the runtime that it uses.
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), os.RTLD_NOLOAD)
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
