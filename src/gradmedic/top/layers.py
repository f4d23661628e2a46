"""The tensors of a run as rows of the screen, from its first and latest tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from gradmedic.diagnosis.finding import Finding
from gradmedic.facts import ParameterFact
from gradmedic.frame import NONE, NOT_VISIBLE, SEEN
from gradmedic.record.arrays import Array
from gradmedic.report.views.grids import Grid
from gradmedic.report.views.order import State, TensorRow
from gradmedic.report.views.trouble import trouble_of
from gradmedic.top.recent import Tables


@dataclass(frozen=True, slots=True)
class Layers:
    """All tensors, in execution order.

    Attributes:
        rows: name, module, state and so on [P].
        norm: latest norms, oldest first [S, P]; NaN not recorded, infinite not finite.
        last_norm, ratio, zeros: the latest of each [P].
        trouble: how far from healthy [P].
        codes: of the findings that name the tensor [P].
    """

    rows: list[TensorRow] = field(default_factory=list)
    norm: Array = field(default_factory=lambda: np.zeros((0, 0)))
    last_norm: Array = field(default_factory=lambda: np.zeros(0))
    ratio: Array = field(default_factory=lambda: np.zeros(0))
    zeros: Array = field(default_factory=lambda: np.zeros(0))
    trouble: Array = field(default_factory=lambda: np.zeros(0))
    codes: list[tuple[str, ...]] = field(default_factory=list)


def layers_of(
    rows: Sequence[TensorRow],
    facts: Mapping[str, ParameterFact],
    tables: Mapping[str, Tables],
    skipped: Mapping[str, Iterable[int]],
    findings: Sequence[Finding],
) -> Layers:
    """Return the rows of the screen.

    Args:
        rows: tensors as the facts have them, in execution order; those that only the tables have are put behind.
        facts: of the parameters, by name.
        tables: by optimizer.
        skipped: steps of each optimizer that left the weights alone: what is not finite there has done no harm.
        findings: folded ones within their causes.
    """
    known = {row.name for row in rows}
    extra = [name for kept in tables.values() for name in kept.names if name not in known]
    whole = [*rows, *(TensorRow(name, name.rpartition(".")[0]) for name in dict.fromkeys(extra))]
    places = {row.name: at for at, row in enumerate(whole)}
    depth = max((len(kept.latest) or len(kept.first) for kept in tables.values()), default=0)
    made = Layers(
        rows=whole,
        norm=np.full((depth, len(whole)), np.nan),
        last_norm=np.full(len(whole), np.nan),
        ratio=np.full(len(whole), np.nan),
        zeros=np.full(len(whole), np.nan),
        trouble=np.zeros(len(whole)),
        codes=[()] * len(whole),
    )
    grids: list[tuple[Grid | None, Grid | None]] = []
    for optimizer, kept in tables.items():
        index = np.array([places[name] for name in kept.names], dtype=np.int64)
        grids.append(_add(made, optimizer, kept, index, facts, frozenset(skipped.get(optimizer, ()))))
    every = list(chain.from_iterable((finding, *finding.folded) for finding in findings))
    blamed = [(finding.severity, finding.where) for finding in every]
    for norm, zeros in grids or [(None, None)]:
        np.maximum(made.trouble, trouble_of(made.rows, norm, zeros, blamed), out=made.trouble)
    _add_codes(made, every)
    return made


def _add(
    made: Layers,
    optimizer: str,
    kept: Tables,
    index: Array,
    facts: Mapping[str, ParameterFact],
    skipped: frozenset[int],
) -> tuple[Grid, Grid]:
    """Fill in what one optimizer's tables say; return the grids of its norms and zero shares."""
    norm, ratio, zeros, bad, status = (kept.matrix(name) for name in ("norm", "ratio", "zeros", "bad", "status"))
    steps = np.array([table.step for table in (*kept.first, *kept.latest)], dtype=np.int64)
    late = slice(len(kept.first) if kept.latest else 0, None)
    recent = norm[late]
    made.norm[len(made.norm) - len(recent) :, index] = recent
    for target, values in ((made.last_norm, norm), (made.ratio, ratio), (made.zeros, zeros)):
        target[index] = _latest(values)
    seen = status == SEEN
    flags = np.stack(
        [
            (bad * ~np.isin(steps, list(skipped))[:, None] > 0).any(axis=0),
            seen.any(axis=0),
            # Zero is what it is now, not what it ever was.
            (~seen[late] | (norm[late] == 0)).all(axis=0) & seen[late].any(axis=0),
            (status == NOT_VISIBLE).any(axis=0),
            (status == NONE).any(axis=0),
        ],
        axis=1,
    )
    for place, known in zip(index.tolist(), flags.tolist(), strict=True):
        row = made.rows[place]
        state = _state(row, facts.get(row.name), *known)
        if state != row.state or row.optimizer is None:
            made.rows[place] = replace(row, state=state, optimizer=row.optimizer or optimizer)
    names, parts = tuple(kept.names), np.zeros(len(steps), dtype=np.int64)
    return Grid("norm", optimizer, steps, parts, names, norm), Grid("zero_share", optimizer, steps, parts, names, zeros)


def _state(
    row: TensorRow, fact: ParameterFact | None, harmful: bool, seen: bool, only_zero: bool, hidden: bool, none: bool
) -> State:
    if row.state == "frozen":
        return "frozen"
    if harmful:
        return "non-finite"
    if seen:
        return "zero" if only_zero else "ok"
    if hidden:
        return "not visible"
    if fact is not None and fact.received is not True and (fact.reached is False or fact.called is False):
        return "unused"
    return "no gradient" if none else row.state


def _latest(values: Array) -> Array:
    """Return the last known value of each column [P], NaN where there is none."""
    if not len(values):
        return np.full(values.shape[1], np.nan)
    known = ~np.isnan(values)
    last = len(values) - 1 - np.argmax(known[::-1], axis=0)
    return np.where(known.any(axis=0), values[last, np.arange(values.shape[1])], np.nan)


def _add_codes(made: Layers, findings: Sequence[Finding]) -> None:
    places: dict[str, list[int]] = {}
    for at, row in enumerate(made.rows):
        for name in {row.name, row.module, *row.aliases} - {""}:
            places.setdefault(name, []).append(at)
    for finding in findings:
        for name in finding.where:
            for at in places.get(name, ()):
                if finding.code not in made.codes[at]:
                    made.codes[at] = (*made.codes[at], finding.code)
