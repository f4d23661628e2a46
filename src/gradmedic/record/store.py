"""Where the bytes of a record lie: a folder, or memory. Nothing here knows what they mean."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Named byte strings that grow at the end, or are replaced as a whole. Every method may raise OSError."""

    def append(self, name: str, data: bytes, size: int) -> None:
        """Add to `name`, which has `size` bytes so far (0 creates it). On failure it has `size` bytes again."""

    def replace(self, name: str, data: bytes) -> None:
        """Put `data` in the place of what was there; a reader sees the old or the new, never a mixture."""

    def remove(self, name: str) -> None:
        """Remove `name`; no error if it is gone."""

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each name has, in order of names."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of `name`."""

    def create(self, name: str, data: bytes) -> bool:
        """Write `name` whole unless it is there; return whether it was written by this call."""

    def renew(self) -> None:
        """Make good, in a forked child, for locks that another thread held at the fork."""


class FolderStore:
    """Files of one folder. No file is held open: a fork, a vanished folder and a remote reader see what is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, name: str, data: bytes, size: int) -> None:
        new = os.O_CREAT | os.O_EXCL if size == 0 else 0
        handle = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | new | getattr(os, "O_BINARY", 0), 0o644)
        try:
            _write_all(handle, data)
        except OSError:
            self._take_back(handle, name, size)
            raise
        finally:
            os.close(handle)

    def replace(self, name: str, data: bytes) -> None:
        temporary = self.folder / f".{name}.tmp"
        try:
            temporary.write_bytes(data)
            os.replace(temporary, self.folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def create(self, name: str, data: bytes) -> bool:
        path, temporary = self.folder / name, self.folder / f".{name}.{os.getpid()}.tmp"
        temporary.write_bytes(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def sizes(self) -> dict[str, int]:
        found = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    if entry.is_file():  # to read a pipe would wait for ever
                        found[entry.name] = entry.stat().st_size
                except OSError:  # replaced or merged just now
                    continue
        return dict(sorted(found.items()))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with open(self.folder / name, "rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)

    def renew(self) -> None: ...

    def _take_back(self, handle: int, name: str, size: int) -> None:
        try:
            if size:
                os.ftruncate(handle, size)
            else:
                self.remove(name)
        except OSError:  # then the reader meets a torn tail
            pass


class MemoryStore:
    """The same in memory; for runs that keep no folder."""

    def __init__(self) -> None:
        self._data: dict[str, bytes | bytearray] = {}
        self._lock = threading.Lock()

    def append(self, name: str, data: bytes, size: int) -> None:
        with self._lock:
            found = self._data.get(name)
            if not isinstance(found, bytearray):
                found = self._data[name] = bytearray(found or b"")
            found += data

    def replace(self, name: str, data: bytes) -> None:
        with self._lock:
            self._data[name] = data

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            return self._data.setdefault(name, data) is data

    def remove(self, name: str) -> None:
        with self._lock:
            self._data.pop(name, None)

    def sizes(self) -> dict[str, int]:
        with self._lock:
            return {name: len(data) for name, data in sorted(self._data.items())}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._lock:
            if name not in self._data:
                raise FileNotFoundError(name)
            return bytes(self._data[name][start:stop])

    def renew(self) -> None:
        self._lock = threading.Lock()


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
