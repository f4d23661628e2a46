"""The tensors of a run in the order in which a forward pass meets them, and the state that each is in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradmedic.facts import ParameterFact
from gradmedic.frame import NOT_VISIBLE, SEEN
from gradmedic.record import Run
from gradmedic.record.arrays import codes_of
from gradmedic.report.views.source import Mask, Source, source_of

State = Literal["ok", "frozen", "unused", "not visible", "no gradient", "zero", "non-finite"]


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor.

    Attributes:
        name, module, kind: qualified name; name and class of the module that holds it ("" where unknown).
        shape, numel, dtype: as torch has them; dtype "" where unknown.
        optimizer: who steps it, None for nobody.
        trainable, aliases: requires_grad; further names of the same tensor.
        order: place in execution order as the graph walk saw it, None where it did not.
        block: the repeated block that holds it ("encoder.layers.3"), else its module's parent.
        state: "ok"; "frozen"; "unused" (the loss does not reach it); "not visible" (its gradient cannot be seen from
            here, or no watched optimizer owns it); "no gradient" (there never was one); "zero" (all of its gradients
            were); "non-finite" (a step was made with NaN or infinity in its gradient).
    """

    name: str
    module: str = ""
    kind: str = ""
    shape: tuple[int, ...] = ()
    numel: int = 0
    dtype: str = ""
    optimizer: str | None = None
    trainable: bool = True
    aliases: tuple[str, ...] = ()
    order: int | None = None
    block: str = ""
    state: State = "ok"


@dataclass(slots=True)
class _Seen:
    """What the record says of one tensor."""

    optimizer: str
    numel: int
    any_seen: bool
    any_hidden: bool
    nonfinite: bool
    only_zero: bool


def tensor_rows(run: Run | Source) -> list[TensorRow]:
    """Return the tensors of a run, input side first.

    Args:
        run: a run, or the source of several views of it.

    Returns:
        Those whose place in execution order is known, then others in the order of their definition, then those that
        only the record has. Models that take turns, each with an optimizer of its own (a GAN), follow each other whole.
        Empty for an empty run.

    Example:
        >>> from gradmedic.record import MemoryRecorder
        >>> tensor_rows(MemoryRecorder(meta={}).run)
        []
    """
    source = source_of(run)
    seen = _recorded(source)
    facts = source.facts.parameters if source.facts is not None else {}
    engine = source.facts is not None and source.facts.engine is not None
    turn = _turns(facts.values())
    known = sorted(facts.values(), key=lambda fact: (turn[_root(fact)], fact.order is None, fact.order or 0))
    names = [*(fact.name for fact in known), *(name for name in seen if name not in facts)]
    blocks = blocks_of(names)
    rows = [_known_row(fact, seen.get(fact.name), blocks[fact.name], engine) for fact in known]
    return rows + [_bare_row(name, seen[name], blocks[name]) for name in names[len(known) :]]


def _turns(facts: Iterable[ParameterFact]) -> dict[str, int]:
    """Return when the tensors under each first part of a name come: all at once, or model by model.

    Parts are of different models when no two optimizers share one.
    """
    owners: dict[str, set[str]] = {}
    first: dict[str, float] = {}
    for fact in facts:
        root = _root(fact)
        owners.setdefault(root, set())
        if fact.optimizer is not None:
            owners[root].add(fact.optimizer)
            order = math.inf if fact.order is None else fact.order
            first[fact.optimizer] = min(first.get(fact.optimizer, math.inf), order)
    if len(first) < 2 or any(len(each) > 1 for each in owners.values()):
        return dict.fromkeys(owners, 0)
    place = {optimizer: at for at, optimizer in enumerate(sorted(first, key=lambda each: first[each]))}
    return {root: place[next(iter(each))] if each else len(place) for root, each in owners.items()}


def _root(fact: ParameterFact) -> str:
    return fact.name.partition(".")[0]


def blocks_of(names: Iterable[str]) -> dict[str, str]:
    """Return the block of each tensor: the outermost part of its name that is a number among several of its kind.

    Example:
        >>> blocks_of(["tok.weight", "h.0.fc.weight", "h.1.fc.weight"])
        {'tok.weight': '', 'h.0.fc.weight': 'h.0', 'h.1.fc.weight': 'h.1'}
    """
    split = {name: name.split(".") for name in names}
    children: dict[tuple[str, ...], set[str]] = {}
    for parts in split.values():
        for at, part in enumerate(parts[:-1]):
            if part.isdecimal():
                children.setdefault(tuple(parts[:at]), set()).add(part)
    return {name: _block(parts, children) for name, parts in split.items()}


def _block(parts: list[str], children: Mapping[tuple[str, ...], set[str]]) -> str:
    for at, part in enumerate(parts[:-1]):
        if part.isdecimal() and len(children[tuple(parts[:at])]) > 1:
            return ".".join(parts[: at + 1])
    return ".".join(parts[:-2])


def _known_row(fact: ParameterFact, seen: _Seen | None, block: str, engine: bool) -> TensorRow:
    return TensorRow(
        name=fact.name,
        module=fact.module,
        kind=fact.kind,
        shape=tuple(fact.shape),
        numel=fact.numel,
        dtype=fact.dtype,
        optimizer=fact.optimizer if fact.optimizer is not None else (seen.optimizer if seen else None),
        trainable=fact.trainable,
        aliases=tuple(fact.aliases),
        order=fact.order,
        block=block,
        state=_state(fact, seen, engine),
    )


def _bare_row(name: str, seen: _Seen, block: str) -> TensorRow:
    module = name.rpartition(".")[0]
    return TensorRow(
        name, module, numel=seen.numel, optimizer=seen.optimizer, block=block, state=_state(None, seen, False)
    )


def _state(fact: ParameterFact | None, seen: _Seen | None, engine: bool) -> State:
    if fact is not None and not fact.trainable:
        return "frozen"
    if seen is not None and seen.any_seen:
        if seen.nonfinite:
            return "non-finite"
        return "zero" if seen.only_zero else "ok"
    if engine or (seen is not None and seen.any_hidden):
        return "not visible"
    if fact is not None and fact.received is not True and (fact.reached is False or fact.called is False):
        return "unused"
    return "not visible" if seen is None else "no gradient"


def _recorded(source: Source) -> dict[str, _Seen]:
    table = source.tensors
    codes, names = codes_of(table["name"])
    owners, optimizers = codes_of(table["optimizer"])
    status, norm = source.column("status"), source.column("norm")
    measured = status == SEEN
    numel = np.zeros(len(names))
    known = source.column("numel") > 0
    numel[codes[known]] = source.column("numel")[known]
    owner = np.zeros(len(names), dtype=np.int64)
    owner[codes[::-1]] = owners[::-1]  # the first one holds
    everywhere = source.places(None)

    def any_of(rows: Mask) -> list[bool]:
        if names and everywhere.regular and len(everywhere.names) == len(names):
            return [bool(found) for found in np.atleast_1d(rows.reshape(-1, len(names)).any(axis=0))]
        return [count > 0 for count in np.bincount(codes[rows], minlength=len(names)).tolist()]

    flags = zip(
        names,
        any_of(np.ones(len(codes), dtype=bool)),
        owner.tolist(),
        numel.tolist(),
        any_of(measured),
        any_of(status == NOT_VISIBLE),
        any_of(source.nonfinite & ~source.skipped),
        any_of(measured & ((norm != 0) | source.nonfinite)),
        strict=True,
    )
    return {
        name: _Seen(optimizers[by], int(size), seen, hidden, nonfinite, not moved)
        for name, there, by, size, seen, hidden, nonfinite, moved in flags
        if there
    }
