"""A recorded run, as it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gradmedic.errors import InputError
from gradmedic.frame import TENSOR_COLUMNS, Frame
from gradmedic.record.arrays import TEXT, Array, as_floats, booleans, codes_of, starts_of_groups, to_numpy, valid_of
from gradmedic.record.frames import frames_of
from gradmedic.record.layout import RUN_FILE, is_record
from gradmedic.record.parts import Parts
from gradmedic.record.processes import attempts_of, in_order_of_beginning
from gradmedic.record.schema import SCHEMAS, STEPS
from gradmedic.record.store import FolderStore, Store

if TYPE_CHECKING:
    from gradmedic.clip.advice import ClipAdvice
    from gradmedic.diagnosis.noise_scale import NoiseScale

_Key = tuple[int, str]


class Run:
    """A record of one training run, finished or still being written.

    Tables are read once; `reload` reads what has come since. Where several processes have written to the folder, the
    tables hold the rows of all, told apart by "rank" and "process"; `series`, `matrix` and `frames` read one rank (the
    lowest that has steps), its processes one after the other in the order in which they began.

    Attributes:
        path: the run folder; None for a run in memory.
    """

    def __init__(self, store: Store, path: Path | None) -> None:
        self.path = path
        self._parts = Parts(store)
        self._tables: dict[str, dict[_Key, pa.Table]] = {}
        self._whole: dict[str, pa.Table] = {}
        self.reload()

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else repr(str(self.path))
        return f"<Run {where}: {self.steps.num_rows} steps of {', '.join(self.optimizers) or 'no optimizer'}>"

    def _repr_html_(self) -> str:
        from gradmedic.report.notebook import run_html

        return run_html(self)

    def reload(self) -> Run:
        """Read what has been written since; return this run."""
        if self._parts.refresh():
            self._tables.clear()
            self._whole.clear()
        return self

    @property
    def meta(self) -> dict[str, Any]:
        """What is known of the run: `run.json`, completed by what further processes said."""
        merged: dict[str, Any] = {}
        for entry in reversed(self._parts.metas()):
            merged.update(entry)
        return merged

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events, in the order of time."""
        return self._parts.events()

    @property
    def ends(self) -> dict[tuple[int, str], dict[str, Any]]:
        """The event by which each process ended, by (rank, process): its own word, whatever a clock has said."""
        return self._parts.ends()

    @property
    def problems(self) -> list[str]:
        """What could not be read, one sentence each; empty for a whole record."""
        return self._parts.problems()

    @property
    def steps(self) -> pa.Table:
        """Scalars, one row for each recorded step of each optimizer."""
        return self._table("steps")

    @property
    def tensors(self) -> pa.Table:
        """Statistics, one row for each tensor of each step that was kept in full."""
        return self._table("tensors")

    @property
    def modules(self) -> pa.Table:
        """Statistics of activations and output gradients."""
        return self._table("modules")

    @property
    def optimizers(self) -> list[str]:
        """Names of the optimizers that made steps, in order of first appearance."""
        codes, names = codes_of(self.steps["optimizer"])
        _, first = np.unique(codes, return_index=True)
        return [names[codes[at]] for at in sorted(first.tolist())]

    def series(self, column: str, optimizer: str | None = None, *, rank: int | None = None) -> Array:
        """Return one scalar over the recorded steps.

        Args:
            column: a column of `steps`, or a name that was logged (`monitor.log`).
            optimizer: only its steps; by default those of all, in the order of time.
            rank: by default the lowest that has steps.

        Returns:
            Array [S]: float64, NaN where nothing is known; int64 or bool where every value is there; texts as objects.

        Raises:
            InputError: there is no such column or optimizer.

        Example:
            >>> run.series("loss")  # doctest: +SKIP
            array([2.31, 2.12, 1.98])
        """
        table = self._of_rank("steps", rank)
        known = set(table.schema.names)
        if column not in known:
            known |= {key for entry in table["logged"].to_pylist() for key, _ in entry or ()}
        if column not in known:
            raise InputError(_no_column(column, [*STEPS.names, *sorted(known - set(table.schema.names))]))
        if optimizer is not None:
            table = _where(table, "optimizer", self._known_optimizer(optimizer))
        if column in table.schema.names:
            return _plain(table[column], column)
        logged = [dict(entry or ()) for entry in table["logged"].to_pylist()]
        return np.array([_number(entry.get(column)) for entry in logged], dtype=np.float64)

    def matrix(
        self, column: str, optimizer: str | None = None, *, rank: int | None = None
    ) -> tuple[Array, list[str], Array]:
        """Return one statistic of all tensors over the steps that were kept in full.

        Args:
            column: a column of `tensors`.
            optimizer: only its tensors; by default those of all, joined by step index.
            rank: by default the lowest that has steps.

        Returns:
            (steps [S] int64, names [P], values [S, P] float64, NaN where a tensor has none).

        Raises:
            InputError: there is no such column or optimizer.
        """
        if column not in TENSOR_COLUMNS:
            raise InputError(_no_column(column, list(TENSOR_COLUMNS)))
        table = self._of_rank("tensors", rank)
        if optimizer is not None:
            table = _where(table, "optimizer", self._known_optimizer(optimizer))
        processes, _ = codes_of(table["process"])
        steps = to_numpy(table["step"])
        # Steps of a restart follow those before it, whatever their index.
        place = _order_of_appearance(processes)
        starts = starts_of_groups(place, steps)
        keys = np.stack([place[starts], steps[starts]], axis=1)
        keys, inverse = np.unique(keys, axis=0, return_inverse=True)
        rows = np.repeat(inverse.reshape(-1), np.diff([*starts, len(steps)]))
        codes, dictionary = codes_of(table["name"])
        present, columns = np.unique(codes, return_inverse=True)
        values = np.full((len(keys), len(present)), np.nan)
        values[rows, columns] = as_floats(table[column])
        return keys[:, 1], [dictionary[code] for code in present], values

    def frames(self, start: int = 0, *, rank: int | None = None) -> Iterator[Frame]:
        """Yield the frames in the order of time, with their tensor tables where these were kept.

        Args:
            start: leave out steps with a lower index.
            rank: by default the lowest that has steps.
        """
        steps, tensors, modules = (self._by_process(kind) for kind in ("steps", "tensors", "modules"))
        for key in self._processes(rank):
            yield from frames_of(steps[key], tensors.get(key), start, modules.get(key))

    def clip_advice(self, *, steps: int = 5000) -> ClipAdvice:
        """Return what several ways of clipping would have done to this run, and which one is recommended.

        Args:
            steps: they are tried on so many of the latest healthy steps, >= 20; about a millisecond each.

        Returns:
            Numbers by optimizer; `gradmedic clip RUN` shows them, `docs/clipping.md` explains them. `print` it for one
            line each.

        Raises:
            InputError: `steps` is not a whole number of at least 20.

        Example:
            >>> run.clip_advice()["optimizer"].recommended.expression  # doctest: +SKIP
            'gm.clip.norm(1.31)'
        """
        from gradmedic.clip.advice import advise

        return advise(self, steps=steps)

    def noise_scale(self, *, last: int = 20) -> NoiseScale:
        """Return the gradient noise scale: how large a batch would still save steps.

        It needs gradients of several small batches at one step, which a job of several ranks has: each rank's own,
        measured before the reduction at sampled steps, beside the reduced one (McCandlish et al. 2018, arXiv
        1812.06162). It changes in the course of training.

        Args:
            last: how many of the latest sampled steps are averaged, >= 1.

        Returns:
            `ratio` (in global batches), `error`, `examples`; where there is none, `reason` says why. `print` it.

        Raises:
            InputError: `last` is not a whole number of at least 1.

        Example:
            >>> print(run.noise_scale())  # doctest: +SKIP
            gradient noise scale: 3.1 ± 0.4 global batches, about 794 examples (9 steps)
        """
        from gradmedic.diagnosis.noise_scale import noise_scale_of

        return noise_scale_of(self, last=last)

    def _by_process(self, kind: str) -> dict[_Key, pa.Table]:
        if kind not in self._tables:
            self._tables[kind] = self._parts.tables(kind)
        return self._tables[kind]

    def _processes(self, rank: int | None) -> list[_Key]:
        """Keys of the processes of one rank that made steps, in the order in which they began."""
        begun = {key: _first_time(table) for key, table in self._by_process("steps").items() if table.num_rows}
        lowest = min((key[0] for key in begun), default=0) if rank is None else rank
        mine = {key: time for key, time in begun.items() if key[0] == lowest}
        return in_order_of_beginning(mine, attempts_of(self._parts.metas()) if len(mine) > 1 else {})

    def _table(self, kind: str) -> pa.Table:
        if kind not in self._whole:
            tables = self._by_process(kind)
            begun = {
                key: at for rank in sorted({key[0] for key in tables}) for at, key in enumerate(self._processes(rank))
            }
            order = sorted(tables, key=lambda key: (key[0], begun.get(key, len(begun))))
            self._whole[kind] = _concatenated(kind, [tables[key] for key in order])
        return self._whole[kind]

    def _of_rank(self, kind: str, rank: int | None) -> pa.Table:
        tables = self._by_process(kind)
        return _concatenated(kind, [tables[key] for key in self._processes(rank) if key in tables])

    def _known_optimizer(self, name: str) -> str:
        if name not in self.optimizers:
            raise InputError(f"no optimizer {name!r} in this run; there are: {', '.join(self.optimizers) or 'none'}")
        return name


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, finished or still being written.

    Args:
        path: the folder that a run was recorded into.

    Returns:
        A `Run`; what of it cannot be read is said in `Run.problems`.

    Raises:
        InputError: there is no such folder, or it holds no run.

    Example:
        >>> from gradmedic.record import Recorder
        >>> from tempfile import mkdtemp
        >>> folder = mkdtemp()
        >>> Recorder(folder, meta={"script": "train.py"}).close()
        >>> open_run(folder).meta["script"]
        'train.py'
    """
    folder = Path(path).absolute()
    if not folder.exists():
        raise InputError(f"run folder {str(path)!r} does not exist; pass the folder that a run was recorded into")
    if not folder.is_dir():
        raise InputError(f"{str(path)!r} is a file; pass the folder that a run was recorded into")
    store = FolderStore(folder)
    try:
        names = store.sizes()
    except OSError as error:
        raise InputError(f"run folder {str(path)!r} cannot be read: {error.strerror or error}") from error
    if not any(is_record(name) for name in names):
        raise InputError(
            f"{str(path)!r} holds no run: it has neither {RUN_FILE} nor steps-*.arrows; pass the folder that a run was "
            f"recorded into"
        )
    return Run(store, folder)


def _concatenated(kind: str, tables: list[pa.Table]) -> pa.Table:
    if tables:
        return pa.concat_tables(tables).unify_dictionaries()
    schema = SCHEMAS[kind].insert(0, pa.field("process", TEXT)).insert(0, pa.field("rank", pa.int16()))
    return pa.Table.from_batches([], schema=schema)


def _where(table: pa.Table, column: str, text: str) -> pa.Table:
    codes, names = codes_of(table[column])
    if text not in names:
        return table.slice(0, 0)
    return table.filter(booleans(codes == names.index(text)))


def _plain(column: pa.ChunkedArray, name: str) -> Array:
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return to_numpy(column) if column.null_count == 0 else as_floats(column)
    if pa.types.is_boolean(column.type):
        return to_numpy(column) if valid_of(column) is None else as_floats(column)
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    raise InputError(f"column {name!r} holds lists; read it from `steps`")


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _first_time(steps: pa.Table) -> float:
    times = as_floats(steps["time"].slice(0, 1))
    return float(times[0]) if len(times) and times[0] == times[0] else 0.0


def _order_of_appearance(codes: Array) -> Array:
    present, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    place = np.empty(len(present), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(present))
    return place[inverse.reshape(-1)]


def _no_column(column: str, known: list[str]) -> str:
    return f"no column {column!r} in this run; there are: {', '.join(known)}"
