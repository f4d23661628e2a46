"""Frames and findings as lines of JSON, on stdout or in a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.strict_row import scalars_of

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame


class JsonLines(BaseSink):
    r"""Writes one object a line: `{"kind": "step", …}` or `{"kind": "finding", …}`.

    The JSON is strict and ASCII: NaN and infinities are the texts "NaN", "Infinity", "-Infinity"; what is not known
    is null; control characters of hostile names are escaped. "run" is the name of the run's folder. Each line is
    written whole and at once.

    Args:
        stream: a text stream, or the path of a file that lines are added to; None or "-" is stdout.
        layers: also write the pre-clip norm of every layer, under "layers", at steps that have them.

    Example:
        >>> import io, gradmedic as gm
        >>> text = io.StringIO()
        >>> sink = gm.sinks.JsonLines(text)
        >>> sink.emit(gm.Frame(0, "optimizer", loss=float("nan")))
        >>> '"loss":"NaN"' in text.getvalue()
        True
    """

    def __init__(self, stream: TextIO | str | os.PathLike[str] | None = None, *, layers: bool = False) -> None:
        super().__init__()
        if isinstance(stream, str) and not stream.strip():
            raise InputError('JsonLines: expected a stream, a path, or "-" for stdout, got an empty path')
        self._target = stream
        self._layers = layers
        self._file: Any = None

    def __repr__(self) -> str:
        return f"JsonLines({self._target if isinstance(self._target, str | os.PathLike) else '-'!r})"

    def open(self) -> None:
        """Open the file."""
        if self._target is None or self._target == "-":
            self._file = sys.stdout
        elif isinstance(self._target, str | os.PathLike):
            self._file = open_to_append(self._target)
        else:
            self._file = self._target

    def write(self, frame: Frame) -> None:
        """Write a step."""
        row = {
            "kind": "step",
            "run": self.run.name,
            **scalars_of(frame),
            "lrs": list(frame.lrs),
            "logged": dict(frame.logged),
        }
        if self._layers:
            from gradmedic.sinks.metric_table import layer_norms

            row["layers"] = dict(layer_norms(frame))
        self._line(row)

    def write_finding(self, finding: Finding) -> None:
        """Write a finding."""
        self._line({"kind": "finding", "run": self.run.name, **finding.to_json(), "title": finding.title})

    def finish(self) -> None:
        """Close the file; a stream that was given stays open."""
        if isinstance(self._target, str | os.PathLike) and self._target != "-":
            self._file.close()

    def _line(self, row: dict[str, Any]) -> None:
        from gradmedic.record.strict_json import dumps

        # Written anew in ASCII: a terminal obeys some control characters that JSON may hold as they are.
        line = json.dumps(json.loads(dumps(row)), separators=(",", ":")) + "\n"
        if isinstance(self._target, str | os.PathLike) and self._target != "-":
            self._file.write(line.encode())
        else:
            self._file.write(line)
            self._file.flush()


def open_to_append(path: str | os.PathLike[str]) -> Any:
    """Open a file to add bytes to, unbuffered, so that a forked child holds nothing to write again.

    Raises:
        InputError: it cannot be opened; the message says why.
    """
    where = Path(path)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        return where.open("ab", buffering=0)
    except OSError as error:
        raise InputError(f"cannot write to {where}: {error.strerror or error}; name another place") from None
