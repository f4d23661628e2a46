"""One reading of a run's tables, shared by all views of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gradmedic.facts import Facts
from gradmedic.frame import SEEN
from gradmedic.record import Run
from gradmedic.record.arrays import as_floats, codes_of, starts_of_groups, to_numpy

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: A process' number and a step's index share one integer.
_PART = 48
_STEP = (1 << _PART) - 1


@dataclass(frozen=True, slots=True)
class Places:
    """Where each row of the tensor table stands in a matrix of recorded steps by tensors, for one optimizer or all.

    Attributes:
        steps: step indices [S]; those of a restart follow those before it, whatever their index.
        parts: which of several processes that trained one after the other made the step [S], from 0.
        names: tensors [P], in the order in which they first appear.
        chosen: rows of the table that are this optimizer's [N]; None for all.
        row, column: place of each of them in the matrix [N].
        regular: whether they fill the matrix row by row, as they do unless tensors come and go.
    """

    steps: Integers
    parts: Integers
    names: tuple[str, ...]
    chosen: Integers | None
    row: Integers
    column: Integers
    regular: bool

    def matrix(self, values: Floats) -> Floats:
        """Return table values [rows] as a matrix [S, P], NaN where there is none; not to be written to."""
        shape = (len(self.steps), len(self.names))
        mine = values if self.chosen is None else values[self.chosen]
        if self.regular:
            return mine.reshape(shape)
        made = np.full(shape, np.nan)
        made[self.row, self.column] = mine
        return made


class Source:
    """The tables of one rank of a run, with what was derived from them; good until the run is reloaded.

    Args:
        run: the run to be shown.
        tensors: rows of its tensor table that stand for all of them, such as the newest; by default all of the rank.

    Attributes:
        rank: the lowest that has steps.
        steps: the step table of the lowest rank that has steps; `tensors` and `modules` are those of that rank too,
            read when they are first asked for.
        optimizers: names, in order of first appearance.
    """

    def __init__(self, run: Run, tensors: pa.Table | None = None) -> None:
        self.run = run
        self._only = tensors
        everything = run.steps
        self.rank = _lowest(everything)
        self.steps = _of_rank(everything, self.rank)
        self.events = run.events
        self.optimizers = _appearance(self.steps["optimizer"])
        self._places: dict[str | None, Places] = {}
        self._floats: dict[str, Floats] = {}

    @cached_property
    def facts(self) -> Facts | None:
        """What is known of the parameters; None where the record does not say."""
        return _facts(self.events)

    @cached_property
    def tensors(self) -> pa.Table:
        """Rows of the tensor table."""
        return _of_rank(self.run.tensors, self.rank) if self._only is None else self._only

    @cached_property
    def modules(self) -> pa.Table:
        """Rows of the module table."""
        return _of_rank(self.run.modules, self.rank)

    def places(self, optimizer: str | None) -> Places:
        """Return where the tensor rows of one optimizer stand; None for those of all, joined by step index."""
        if self.optimizers == [optimizer]:
            optimizer = None
        if optimizer not in self._places:
            self._places[optimizer] = _places(self.tensors, optimizer)
        return self._places[optimizer]

    @cached_property
    def nonfinite(self) -> Mask:
        """Which tensor rows [rows] have elements that are NaN or infinite."""
        bad: Mask = (self.column("nan_count") > 0) | (self.column("inf_count") > 0)
        return bad

    @cached_property
    def unseen(self) -> Mask | None:
        """Which tensor rows [rows] have no gradient that was measured; None where all have one."""
        without: Mask = self.column("status") != SEEN
        return without if without.any() else None

    def column(self, name: str) -> Floats:
        """Return one number of all tensor rows [rows], NaN where it was not measured."""
        if name not in self._floats:
            self._floats[name] = as_floats(self.tensors[name])
        return self._floats[name]

    @cached_property
    def skipped(self) -> Mask:
        """Which tensor rows [rows] belong to a step that left the weights alone."""
        flags = np.nan_to_num(as_floats(self.steps["skipped"])) > 0
        if not flags.any():
            return np.zeros(self.tensors.num_rows, dtype=bool)
        vocabulary: dict[str, int] = {}
        skips = _step_ids(self.steps, vocabulary)[:, flags]
        tables = _step_ids(self.tensors, vocabulary)
        starts = starts_of_groups(*tables)
        _, inverse = np.unique(np.concatenate([skips, tables[:, starts]], axis=1), axis=1, return_inverse=True)
        inverse = inverse.reshape(-1)
        found = np.isin(inverse[skips.shape[1] :], inverse[: skips.shape[1]])
        return np.repeat(found, np.diff([*starts.tolist(), self.tensors.num_rows]))


def source_of(run: Run | Source) -> Source:
    """Return the source itself, or one for the run."""
    return run if isinstance(run, Source) else Source(run)


def parts_of(table: pa.Table) -> Integers:
    """Return which of the processes that followed each other wrote each row [N]: 0, 1, …"""
    codes, processes = codes_of(table["process"])
    if len(processes) <= 1:
        return np.zeros(len(codes), dtype=np.int64)
    present, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(present), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(present))
    return rank[inverse.reshape(-1)]


def step_keys(parts: Integers, steps: Integers) -> Integers:
    """Return one number for each step of each process [N]; they are ordered as the steps were made."""
    return (parts << _PART) + steps


def split_keys(keys: Integers) -> tuple[Integers, Integers]:
    """Return (steps, parts) of what `step_keys` made."""
    return keys & _STEP, keys >> _PART


def _step_ids(table: pa.Table, vocabulary: dict[str, int]) -> Integers:
    """Return (process, optimizer, step) of each row [3, N], texts by their number in a vocabulary that grows."""
    ids = []
    for column in ("process", "optimizer"):
        codes, names = codes_of(table[column])
        known = np.array([vocabulary.setdefault(name, len(vocabulary)) for name in names], dtype=np.int64)
        ids.append(known[codes] if len(names) else codes.astype(np.int64))
    return np.stack([*ids, to_numpy(table["step"]).astype(np.int64)])


def _places(table: pa.Table, optimizer: str | None) -> Places:
    chosen = _rows_of(table, optimizer)
    steps, parts = to_numpy(table["step"]).astype(np.int64), parts_of(table)
    name_codes, dictionary = codes_of(table["name"])
    if chosen is not None:
        steps, parts, name_codes = steps[chosen], parts[chosen], name_codes[chosen]
    starts = starts_of_groups(parts, steps)
    # A table that the flight recorder handed in late stands behind later ones in the file.
    keys, inverse = np.unique(step_keys(parts[starts], steps[starts]), return_inverse=True)
    row = np.repeat(inverse.reshape(-1), np.diff([*starts.tolist(), len(steps)]))
    used = np.flatnonzero(np.bincount(name_codes, minlength=len(dictionary)))
    column = np.empty(len(dictionary), dtype=np.int64)
    column[used] = np.arange(len(used))
    names = tuple(dictionary[code] for code in used.tolist())
    place = column[name_codes]
    return Places(*split_keys(keys), names, chosen, row, place, _is_regular(row, place, len(keys), len(names)))


def _rows_of(table: pa.Table, optimizer: str | None) -> Integers | None:
    """Return the rows of one optimizer, None for all."""
    if optimizer is None:
        return None
    codes, optimizers = codes_of(table["optimizer"])
    mine = codes == optimizers.index(optimizer) if optimizer in optimizers else np.zeros(len(codes), dtype=bool)
    return None if bool(mine.all()) and len(mine) else np.flatnonzero(mine)


def _is_regular(row: Integers, column: Integers, steps: int, names: int) -> bool:
    if len(row) != steps * names:
        return False
    return bool(
        (row.reshape(steps, names) == np.arange(steps)[:, None]).all()
        and (column.reshape(steps, names) == np.arange(names)).all()
    )


def _lowest(steps: pa.Table) -> int:
    return int(to_numpy(steps["rank"]).min()) if steps.num_rows else 0


def _of_rank(table: pa.Table, rank: int) -> pa.Table:
    """Rows of one rank: tables are in the order of ranks, so that they lie together."""
    ranks = to_numpy(table["rank"])
    start, stop = np.searchsorted(ranks, [rank, rank + 1])
    return table if stop - start == table.num_rows else table.slice(int(start), int(stop - start))


def _appearance(column: pa.ChunkedArray) -> list[str]:
    codes, names = codes_of(column)
    _, first = np.unique(codes, return_index=True)
    return [names[codes[at]] for at in sorted(first.tolist())]


def _facts(events: list[Mapping[str, Any]] | list[dict[str, Any]]) -> Facts | None:
    told = [event["facts"] for event in events if event.get("kind") == "facts"]
    for entry in reversed(told):
        try:
            return Facts.from_json(entry)
        except (TypeError, ValueError, KeyError, AttributeError):  # damaged, or of another version
            continue
    return None
