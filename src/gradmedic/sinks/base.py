"""What the sinks of this package have in common: they open at the first frame, and know the run that they show."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame


@dataclass(frozen=True)
class RunLabel:
    """What a sink may say of the run: its name, and where it runs."""

    name: str = "gradmedic"
    host: str = ""
    rank: int = 0


class BaseSink:
    """A sink that meets the world at its first frame: a constructor only checks its arguments.

    A subclass writes in `write` and `write_finding`; `open` is called before the first of them, `finish` at the end.
    All four are called from one thread. What they raise switches the sink off, with one sentence.

    Attributes:
        direct: whether `watch` calls the sink in the training thread instead of behind a queue.
        keeps_trying: whether a failure (a server that is down) only loses what was to be written, and the sink is
            tried again after a pause; otherwise the first failure is the last.
        wants_frames: whether it is given frames at all.
        patience: seconds that closing may take when it works behind a queue.
        holding: whether something is held back, and `flush` wants to be called.
        secrets: texts that must not be shown, such as the token in an address; taken out of every message.
    """

    direct = False
    keeps_trying = False
    wants_frames = True
    patience = 10.0

    def __init__(self) -> None:
        self.run = RunLabel()
        self.secrets: tuple[str, ...] = ()
        self.holding = False
        self._opened = False

    def begin(self, run: RunLabel) -> None:
        """Learn which run this is; called once in the training thread, before the first frame. Must be quick."""
        self.run = run

    def emit(self, frame: Frame) -> None:
        """Take one frame."""
        self._ready()
        self.write(frame)

    def emit_finding(self, finding: Finding) -> None:
        """Take one finding."""
        self._ready()
        self.write_finding(finding)

    def flush(self) -> None:
        """Write what is held back; called every second while nothing comes and `holding` is set."""

    def close(self) -> None:
        """End it; may be called again, and without anything having been written."""
        if self._opened:
            self._opened = False
            self.finish()

    def open(self) -> None:
        """Make files, connections, servers."""

    def write(self, frame: Frame) -> None:
        """Write one frame."""
        raise NotImplementedError

    def write_finding(self, finding: Finding) -> None:
        """Write one finding."""

    def finish(self) -> None:
        """Write the rest, and let go of what `open` made."""

    def _ready(self) -> None:
        if not self._opened:
            self.open()
            self._opened = True


def require(module: str, *, extra: str, package: str, least: str) -> Any:
    """Import an optional library.

    Args:
        module: what to import.
        extra: gradmedic's extra that installs it.
        package: its name in the registry.
        least: the least version that this works with, as in "2.15".

    Raises:
        InputError: it is missing, broken or too old; the message says what to install.
    """
    mend = f"pip install 'gradmedic[{extra}]'"
    version = version_of(package)
    if version is not None and _numbers(version) < _numbers(least):
        raise InputError(f"needs {package} {least} or later, found {version}: {mend} --upgrade")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "") == module.partition(".")[0]
        why = "which is not installed" if missing else f"which cannot be imported ({error})"
        raise InputError(f"needs the package {package}, {why}: {mend}") from None


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None where nothing is known of it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
