"""A run as a TensorBoard event file while it is trained; tags are those of `gradmedic export --to tensorboard`."""

from __future__ import annotations

import math
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink, require

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame, TensorTable

LEAST = "2.15"


class TensorBoard(BaseSink):
    """Writes scalars, norms by layer, log2 histograms, and findings as text; needs `gradmedic[tensorboard]`.

    TensorBoard reads one writer in a folder: where the folder has event files already, a folder `gradmedic` within it
    is taken.

    Args:
        folder: where the event file comes to lie; made when missing.
        layers: how many layers have a norm and a histogram of their own, in the order of the model.
        layers_every: every how many steps their norms are written.

    Example:
        >>> import gradmedic as gm
        >>> gm.sinks.TensorBoard("runs/tb")
        TensorBoard('runs/tb')
    """

    def __init__(self, folder: str | os.PathLike[str], *, layers: int = 1000, layers_every: int = 10) -> None:
        super().__init__()
        if not isinstance(folder, str | os.PathLike) or not str(folder).strip():
            raise InputError(f"TensorBoard: expected a folder, got {folder!r}")
        check_layers("TensorBoard", layers, layers_every)
        self.folder = Path(folder)
        self._layers, self._layers_every = layers, layers_every
        self._file: Any = None
        self._main: str | None = None

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"

    def open(self) -> None:
        """Check that TensorBoard is there, and that the folder can be written to; the file begins with a step."""
        require("tensorboard", extra="tensorboard", package="tensorboard", least=LEAST)
        try:
            if self._main is None:  # not opened again
                self.folder = _free_folder(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}; name another place") from None

    def write(self, frame: Frame) -> None:
        """Write a step."""
        from gradmedic.export.tensorboard_files import SCALARS

        file = self._writer(frame.time)
        if self._main is None:
            self._main = frame.optimizer
        prefix = "train/" if frame.optimizer == self._main else f"{frame.optimizer}/"
        scalars = [(prefix + name, value) for name in SCALARS if (value := getattr(frame, name)) is not None]
        scalars += [(f"{prefix}logged.{key}", value) for key, value in frame.logged.items()]
        file.scalars(frame.step, frame.time, [(_tag(tag), float(value)) for tag, value in scalars])
        if frame.tensors.names and self._layers:
            self._write_layers(file, frame)

    def write_finding(self, finding: Finding) -> None:
        """Write a finding as text."""
        import time

        from gradmedic.export.tensorboard_files import markdown

        now = time.time()
        self._writer(now).text(finding.step, now, f"finding/{finding.code}", markdown(finding.to_json(full=True)))

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _writer(self, began: float) -> Any:
        if self._file is None:
            from gradmedic.export.event_file import EventFile

            name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
            try:
                self._file = EventFile(self.folder, began, suffix=name, live=True)
            except OSError as error:
                where = self.folder
                raise InputError(f"cannot write to {where}: {error.strerror or error}; name another place") from None
        return self._file

    def _write_layers(self, file: Any, frame: Frame) -> None:
        table = frame.tensors
        norms, status = table.column("norm").tolist(), table.column("status").tolist()
        seen = [at for at in range(min(len(table.names), self._layers)) if status[at] == 0]
        if frame.step % self._layers_every == 0:
            known = [(f"norm/{_tag(table.names[at])}", norms[at]) for at in seen]
            file.scalars(frame.step, frame.time, known)
        if table.log2_hist is not None:
            file.histograms(frame.step, frame.time, [_histogram(table, at) for at in seen])


def _histogram(table: TensorTable, at: int) -> tuple[str, Any, float, float, float, float]:
    """Return (tag, counts, zeros, largest, mean of magnitudes, norm) of a tensor; what is not finite counts as 0."""
    columns = ("zero_count", "max_abs", "mean_abs", "norm")
    values = [float(table.column(column)[at]) for column in columns]
    zeros, largest, mean, norm = (value if math.isfinite(value) else 0.0 for value in values)
    assert table.log2_hist is not None
    return f"magnitude/{_tag(table.names[at])}", table.log2_hist[at], zeros, largest, mean, norm


def _tag(name: str) -> str:
    return name.encode("utf-8", "replace").decode()  # the message would refuse a lone surrogate


def _free_folder(folder: Path) -> Path:
    """Return the folder, or one within it where it has event files; two writers in one folder lose data."""
    candidate, number = folder, 1
    while candidate.is_dir() and any(candidate.glob("*tfevents*")):
        candidate = folder / ("gradmedic" if number == 1 else f"gradmedic-{number}")
        number += 1
    return candidate


def check_layers(sink: str, layers: Any, layers_every: Any) -> None:
    """Raise InputError unless there are at least 0 layers, every at least 1 steps."""
    for name, value, least in (("layers", layers, 0), ("layers_every", layers_every, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{sink}: expected {name} of at least {least}, got {value!r}")
