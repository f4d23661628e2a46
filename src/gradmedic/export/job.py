"""One export: what is asked for is checked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradmedic.errors import InputError
from gradmedic.export.csv_files import write_csv
from gradmedic.export.flat import keys_of
from gradmedic.export.parquet_files import write_parquet
from gradmedic.export.selection import Selection, parse_columns, parse_steps
from gradmedic.export.source import Progress, Source
from gradmedic.export.target import new_folder
from gradmedic.export.tensorboard_files import require_tensorboard, write_tensorboard
from gradmedic.record.run import Run

_Writer = Callable[[Source, Selection, Path], Iterator[str]]
_WRITERS: Mapping[str, _Writer] = {"parquet": write_parquet, "csv": write_csv, "tensorboard": write_tensorboard}
FORMATS: tuple[str, ...] = tuple(_WRITERS)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written.

    Attributes:
        folder: where it lies; `files` the names in it; `bytes` of all of them.
        problems: what of the run could not be read, one sentence each.
    """

    folder: Path
    files: tuple[str, ...]
    bytes: int
    problems: tuple[str, ...]


def export_run(
    run: Run | str | os.PathLike[str],
    to: str,
    target: str | os.PathLike[str] | None = None,
    *,
    steps: str | None = None,
    columns: Iterable[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a run as Parquet, CSV or TensorBoard files.

    A folder is read one segment at a time, so a record much larger than memory is no trouble; the files appear in
    `target` only when all of them are whole.

    Args:
        run: an opened run, or a run folder.
        to: "parquet", "csv" or "tensorboard".
        target: folder; by default beside the run, "exp1-parquet" for "exp1".
        steps: "100:200", "100:" or ":200": only these steps, the last one left out.
        columns: only these columns, beside those that say which row it is; None: all.
        force: replace files of the same names in `target`.
        progress: called with the bytes read so far and those of the whole.

    Returns:
        What was written.

    Raises:
        InputError: no such format, run, column or range; `target` is not empty; a package is missing.

    Example:
        >>> export_run("runs/exp1", "parquet", steps="0:1000").files  # doctest: +SKIP
        ('steps.parquet', 'tensors.parquet', 'modules.parquet', 'events.parquet', 'meta.json')
    """
    if to not in _WRITERS:
        raise InputError(f"to must be one of {', '.join(FORMATS)}, not {to!r}")
    if to == "tensorboard":
        require_tensorboard()
    first, last = parse_steps(steps)
    source = Source(run if isinstance(run, Run) else Path(run), progress)
    wanted = parse_columns(columns, keys_of(source.run.steps["logged"]))
    folder = _target(source.run, to, target)
    with new_folder(folder, force=force) as work:
        files = tuple(_WRITERS[to](source, Selection(first, last, wanted), work))
        size = sum((work / name).stat().st_size for name in files)
    return Exported(folder, files, size, tuple(dict.fromkeys(source.problems)))


def _target(run: Run, to: str, target: str | os.PathLike[str] | None) -> Path:
    if target is not None:
        return Path(target).absolute()
    if run.path is None:
        raise InputError("a run in memory has no folder of its own: name the target folder")
    return run.path.parent / f"{run.path.name}-{to}"
