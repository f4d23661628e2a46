"""One statistic of layers or tensors over steps, with the state of each cell that has no number."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

import numpy as np

from gradmedic.errors import InputError
from gradmedic.plot.metrics import Metric, metric_named
from gradmedic.plot.scalars import check_optimizer
from gradmedic.plot.states import ABSENT, NOT_FINITE, NUMBER, ZERO, cell_states, joined_states
from gradmedic.plot.steps import Steps, chosen_steps
from gradmedic.record.arrays import Array
from gradmedic.report.views import LayerRow, Source, TensorRow, layer_rows, tensor_rows

#: Patterns of names, as those of files.
Patterns: TypeAlias = "str | Sequence[str]"


@dataclass(frozen=True, slots=True)
class Table:
    """What a figure of layers shows.

    Attributes:
        names, blocks: of the rows [R], input side first; the block that each belongs to ("" for none).
        members: the tensors of each row [R].
        steps: recorded steps among the chosen ones [S].
        values: [S, R]; NaN wherever the state says that there is no number.
        states: what each cell holds [S, R], of `gradmedic.plot.states`.
        log: whether the values belong on a logarithmic scale.
    """

    names: tuple[str, ...]
    blocks: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    steps: Array
    values: Array
    states: Array
    log: bool

    def only(self, rows: Sequence[int]) -> Table:
        """Return some of the rows."""
        return Table(
            tuple(self.names[at] for at in rows),
            tuple(self.blocks[at] for at in rows),
            tuple(self.members[at] for at in rows),
            self.steps,
            self.values[:, list(rows)],
            self.states[:, list(rows)],
            self.log,
        )


def table_of(source: Source, metric: str, *, per: str, optimizer: str | None, layers: Patterns, steps: Steps) -> Table:
    """Return one statistic of the chosen rows and steps.

    Args:
        source: the run.
        metric: a name in `gradmedic.plot.metrics.METRICS`.
        per: "layer" (modules that own tensors) or "tensor".
        optimizer: whose tensors; None for those of all, joined by step.
        layers: patterns of names; see `matching`.
        steps: see `chosen_steps`.

    Raises:
        InputError: any of these is not as described, or a pattern matches nothing.
    """
    check_optimizer(source, optimizer)
    measure = metric_named(metric)
    rows = matching(_rows_of(source, optimizer), layers)
    groups = grouped(rows, per)
    side_by_side = [at for group in groups for at in group.tensors]
    ordered = [rows[at] for at in side_by_side]
    starts = np.cumsum([0, *(len(group.tensors) for group in groups[:-1])]).astype(np.int64)
    recorded, columns = _columns(source, optimizer, ordered, measure)
    kept = chosen_steps(recorded, steps)
    states = cell_states(columns["status"], columns["bad"], [row.state for row in ordered])
    if groups:
        values = measure.joined({key: columns[key] for key in measure.columns}, starts)
        states = joined_states(states, starts)
    else:
        values = np.zeros((len(recorded), 0))
    # Weights are not measured at every step: what is carried forward comes from before the chosen ones.
    values, states = _settled(values[kept], states[kept], measure)
    return Table(
        names=tuple(group.name for group in groups),
        blocks=tuple(rows[group.tensors[0]].block for group in groups),
        members=tuple(tuple(rows[at].name for at in group.tensors) for group in groups),
        steps=recorded[kept],
        values=values,
        states=states,
        log=measure.log,
    )


def grouped(rows: Sequence[TensorRow], per: str) -> list[LayerRow]:
    """Return the rows of a figure: layers, or each tensor as a layer of its own.

    Raises:
        InputError: `per` is neither "layer" nor "tensor".
    """
    if per not in ("layer", "tensor"):
        raise InputError(f'per must be "layer" or "tensor", not {per!r}')
    return layer_rows(rows) if per == "layer" else [LayerRow(row.name, row.kind, (at,)) for at, row in enumerate(rows)]


def matching(rows: Sequence[TensorRow], patterns: Patterns) -> list[TensorRow]:
    """Return the tensors whose name, or the name of anything that holds them, fits one of the patterns.

    Raises:
        InputError: a pattern fits nothing.
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    if not all(isinstance(pattern, str) for pattern in wanted):
        raise InputError(f"layers must be a pattern of names or several of them, got {patterns!r}")
    if not rows or "*" in wanted:
        return list(rows)
    holders = [_holders(row) for row in rows]
    kept: set[int] = set()
    for pattern in wanted:
        fits = {at for at, names in enumerate(holders) if _fits(names, pattern)}
        if not fits:
            known = sorted({name for names in holders for name in names})
            near = get_close_matches(pattern, known, 3, 0.4) or known[:3]
            raise InputError(f"no layer or tensor matches {pattern!r}; there are for instance: {', '.join(near)}")
        kept |= fits
    return [rows[at] for at in sorted(kept)]


def _fits(names: Sequence[str], pattern: str) -> bool:
    return pattern in names or any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _holders(row: TensorRow) -> list[str]:
    """Return the names of a tensor and of everything that holds it."""
    parts = row.name.split(".")
    return [*(".".join(parts[:stop]) for stop in range(1, len(parts) + 1)), *row.aliases]


def _rows_of(source: Source, optimizer: str | None) -> list[TensorRow]:
    rows = tensor_rows(source)
    if optimizer is None:
        return rows
    recorded = set(source.places(optimizer).names)
    return [row for row in rows if row.optimizer == optimizer or row.name in recorded]


def _columns(
    source: Source, optimizer: str | None, rows: Sequence[TensorRow], measure: Metric
) -> tuple[Array, dict[str, Array]]:
    """Return the recorded steps [S], and table columns [S, P] of the tensors in their order."""
    listed = source.optimizers if optimizer is None else [optimizer]
    places = [source.places(name) for name in listed]
    stamps: list[Array] = [(each.parts << 48) + each.steps for each in places]
    nothing: Array = np.zeros(0, dtype=np.int64)
    keys = np.unique(np.concatenate([nothing, *stamps]))
    order = {row.name: at for at, row in enumerate(rows)}
    wanted = dict.fromkeys(("status", "bad", *measure.columns))
    made = {key: np.full((len(keys), len(rows)), np.nan) for key in wanted}
    for each, stamp in zip(places, stamps, strict=True):
        own = [at for at, name in enumerate(each.names) if name in order]
        target = np.ix_(np.searchsorted(keys, stamp), np.array([order[each.names[at]] for at in own], dtype=np.int64))
        for key in made:
            matrix = each.matrix(_column(source, key))[:, own]
            made[key][target] = np.where(np.isnan(matrix), made[key][target], matrix)
    return keys & ((1 << 48) - 1), made


def _column(source: Source, key: str) -> Array:
    return source.column("nan_count") + source.column("inf_count") if key == "bad" else source.column(key)


def _settled(values: Array, states: Array, measure: Metric) -> tuple[Array, Array]:
    """Let states and values agree: zeros that a logarithm cannot show, and numbers that were not recorded."""
    number = states == NUMBER
    states[number & np.isinf(values)] = NOT_FINITE
    if measure.log:
        states[number & (values == 0)] = ZERO
    states[number & np.isnan(values)] = ABSENT
    return np.where(states == NUMBER, values, np.nan), states
