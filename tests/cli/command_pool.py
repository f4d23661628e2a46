"""Commands in processes forked from one that has imported all they need: what a fresh interpreter takes seconds for.

This file is both sides. Imported, it starts itself as a program (`Pool`); that program imports, and then forks a
process for every command that it is asked to run. It has no threads but that of pyarrow's allocator, which knows about
forks, and has trained nothing: its copies start as a new python does after the same imports. Arguments, folder,
environment, standard streams and the end (exit codes, signals, `atexit`, threads) are those of a process of its own;
what is different is that torch has been imported before the script begins.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

#: What a training script and the commands import.
IMPORTS = ("torch", "torch._dynamo", "sklearn.datasets", "gradmedic")

Completed = subprocess.CompletedProcess[bytes]


class Pool:
    """Starts commands; the process that forks them starts with the first one.

    Args:
        env: environment in which torch is imported.
        bare: import what the command itself imports, and nothing for a script: no torch.
    """

    def __init__(self, env: Mapping[str, str], bare: bool = False) -> None:
        self._env, self._bare = dict(env), bare
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def start(self, words: list[str], folder: Path, env: Mapping[str, str]) -> Forked:
        """Start `gradmedic *words[1:]` for words that begin with "gradmedic", else the python script words[0]."""
        line = self._connect()
        ours, theirs = zip(*((read, write) for read, write in (os.pipe(), os.pipe())), strict=True)
        read, stdin = os.pipe()
        request = json.dumps({"words": words, "folder": str(folder), "env": dict(env)}).encode()
        socket.send_fds(line, [len(request).to_bytes(4, "big")], [read, *theirs])
        for handle in (read, *theirs):
            os.close(handle)
        try:
            line.sendall(request)
            pid = int.from_bytes(_receive(line, 4), "big")
        except BaseException:  # a test that took too long: the answer would be taken for that to the next order
            self.close()
            raise
        return Forked(pid, line, os.fdopen(stdin, "wb", 0), *(os.fdopen(handle, "rb") for handle in ours))

    def run(
        self, words: list[str], folder: Path, env: Mapping[str, str], stdin: bytes = b"", timeout: float = 250.0
    ) -> Completed:
        """Do what `subprocess.run(..., capture_output=True)` does."""
        return self.start(words, folder, env).finish(words, stdin, timeout)

    def close(self) -> None:
        """End the process that forks."""
        if self._process is not None and self._line is not None:
            self._line.close()
            self._process.kill()
            self._process.wait()
            self._process = self._line = None

    def _connect(self) -> socket.socket:
        if self._line is None:
            self._line, other = socket.socketpair()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno()), *(["bare"] if self._bare else [])],
                pass_fds=[other.fileno()],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            other.close()
        return self._line


class Forked:
    """One command that runs; one at a time is waited for."""

    def __init__(self, pid: int, line: socket.socket, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self._line = line

    def finish(self, words: list[str], stdin: bytes = b"", timeout: float = 250.0) -> Completed:
        """Feed, read and wait; what takes longer than `timeout` seconds is killed, with all that it has started."""
        late = threading.Event()
        clock = threading.Timer(timeout, lambda: (late.set(), os.killpg(self.pid, signal.SIGKILL)))
        clock.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it may have ended without reading them
                self.stdin.write(stdin)  # fewer bytes than a pipe holds
            self.stdin.close()
            read: list[bytes] = []
            other = threading.Thread(target=lambda: read.append(self.stderr.read()))
            other.start()
            said = self.stdout.read()
            other.join()
            code = self.wait()
        finally:
            clock.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(words, timeout, said, read[0])
        return subprocess.CompletedProcess(words, code, said, read[0])

    def wait(self) -> int:
        """Return the exit code, minus a signal's number."""
        self._line.sendall(self.pid.to_bytes(4, "big") + b"wait")
        code = int.from_bytes(_receive(self._line, 4), "big", signed=True)
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        return code


def _receive(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise EOFError("the process that forks commands has ended")
        data += part
    return data


# -- the process that forks --------------------------------------------------------------------


def _import_all() -> None:
    for name in IMPORTS:
        importlib.import_module(name)
    package = importlib.import_module("gradmedic")
    for module in pkgutil.walk_packages(package.__path__, "gradmedic."):
        # those left out act when they are imported, or need Triton
        if not module.name.endswith(("__main__", "sitecustomize", "_kernels")):
            importlib.import_module(module.name)


def _serve(line: socket.socket) -> Callable[[], object]:
    """Answer orders for ever; return only in a forked process, what it shall do."""
    while True:
        head, handles, _, _ = socket.recv_fds(line, 4, 3)
        if not head:
            os._exit(0)
        if not handles:
            _receive(line, 4)  # "wait"
            _, status = os.waitpid(int.from_bytes(head, "big"), 0)
            line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            continue
        request = json.loads(_receive(line, int.from_bytes(head, "big")))
        pid = os.fork()
        if pid == 0:
            line.close()
            return _become(request, handles)
        for handle in handles:
            os.close(handle)
        line.sendall(pid.to_bytes(4, "big"))


def _become(request: dict, handles: list[int]) -> Callable[[], object]:
    os.setpgid(0, 0)
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = request["words"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "gradmedic":
        sys.argv, sys.path[0] = words, os.getcwd()
        sys.orig_argv[:] = [sys.executable, "-m", *words]
        return importlib.import_module("gradmedic.cli").main
    sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
    sys.orig_argv[:] = [sys.executable, *words]
    return lambda: (runpy.run_path(words[0], run_name="__main__"), 0)[1]


if __name__ == "__main__":
    if sys.argv[2:] == ["bare"]:
        importlib.import_module("gradmedic.cli")
    else:
        _import_all()
    gc.freeze()  # a collection in a copy touches, and so copies, no page of what is shared
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1])))())
