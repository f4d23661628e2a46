"""Scalars of every step as a CSV file, and findings as a second one beside it."""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.json_lines import open_to_append
from gradmedic.sinks.strict_row import COLUMNS, scalars_of

if TYPE_CHECKING:
    from gradmedic.diagnosis import Finding
    from gradmedic.frame import Frame

_HEADER = (*COLUMNS, "logged", "run")
_FINDING_HEADER = ("code", "name", "severity", "step", "optimizer", "where", "message", "run")


class Csv(BaseSink):
    """Writes a CSV file, UTF-8: one line a step, columns as in the record; nothing where a number is not known.

    What was logged is one column of JSON. Findings go to `<name>-findings.csv`. A file of an earlier run is added
    to; the column `run` has the name of the run's folder.

    Args:
        path: the file; folders are made.

    Example:
        >>> import gradmedic as gm, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "numbers.csv")
        >>> sink = gm.sinks.Csv(path)
        >>> sink.emit(gm.Frame(0, "optimizer", loss=0.5)); sink.close()
        >>> open(path).readlines()[1].startswith("0,optimizer,")
        True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        if not isinstance(path, str | os.PathLike) or not str(path).strip():
            raise InputError(f"Csv: expected the path of a file, got {path!r}")
        self.path = Path(path)
        self._steps: Any = None
        self._findings: Any = None

    def __repr__(self) -> str:
        return f"Csv({str(self.path)!r})"

    def open(self) -> None:
        """Open the file of steps, with its header."""
        self._steps = _open(self.path, _HEADER)

    def write(self, frame: Frame) -> None:
        """Write a step."""
        from gradmedic.record.strict_json import dumps

        values = [_cell(value) for value in scalars_of(frame).values()]
        self._steps.write(_line([*values, dumps(dict(frame.logged)) if frame.logged else "", _cell(self.run.name)]))

    def write_finding(self, finding: Finding) -> None:
        """Write a finding."""
        if self._findings is None:
            self._findings = _open(self.path.with_name(f"{self.path.stem}-findings.csv"), _FINDING_HEADER)
        where = "; ".join(finding.where)
        row = [finding.code, finding.name, finding.severity, finding.step, finding.optimizer, where, finding.message]
        self._findings.write(_line([_cell(value) for value in (*row, self.run.name)]))

    def finish(self) -> None:
        """Close the files."""
        for file in (self._steps, self._findings):
            if file is not None:
                file.close()
        self._steps = self._findings = None


def _open(path: Path, header: tuple[str, ...]) -> Any:
    file = open_to_append(path)
    first = _line(header)
    if file.tell() == 0:
        file.write(first)
    elif path.open("rb").read(len(first)) != first:
        file.close()
        raise InputError(
            f"{path} holds something else than the columns that this version of gradmedic writes; name another file"
        )
    return file


def _line(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """Return a cell as `gradmedic export --to csv` writes it; a text that a spreadsheet would compute is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, str):
        return "'" + value if value[:1] in ("=", "+", "-", "@") else value
    return value
