"""Why a parameter has no gradient: unused, detached, conditional, frozen and not visible are different verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.layout import template
from gradmedic.diagnosis.view import View
from gradmedic.facts import ParameterFact

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Missing:
    """Tensors of one optimizer that never had a gradient.

    Attributes:
        places: all of them, as indices into the layout.
        prefix: those that are called and precede, in execution order, every tensor that has gradients: the graph is
            cut behind them.
        conditional: whether other tensors have gradients in some steps and none in others (experts, several tasks).
    """

    places: Places
    prefix: Places
    conditional: bool


def missing(view: View, least: int) -> Missing:
    """Return the trainable tensors without a gradient in at least `least` steps that had any gradients."""
    counters = view.history.counters
    never = (counters.seen == 0) & (counters.none >= least)
    places = np.array(
        [place for place in np.flatnonzero(never) if _counts(view.layout.facts[place])],
        dtype=np.int64,
    )
    conditional = bool(((counters.seen > 0) & (counters.none > 0)).any())
    return Missing(places, _prefix(view, places), conditional)


def has_sibling(view: View, name: str) -> bool:
    """Whether a tensor of the same name but for its numbers (another expert) has had gradients."""
    mask = template(name)
    seen = view.history.counters.seen
    return any(
        seen[place] > 0 and template(other) == mask for place, other in enumerate(view.layout.names) if other != name
    )


def reason(fact: ParameterFact | None) -> str:
    """Return the variant of GM101 that tells why a parameter is unused."""
    if fact is None or fact.reached is None:
        return "unknown"
    if fact.aliases:
        return "tied"
    if fact.called is False:
        return "never_called"
    return "branch" if fact.called else "unknown"


def _counts(fact: ParameterFact | None) -> bool:
    return fact is not None and fact.trainable and fact.numel > 0


def _prefix(view: View, places: Places) -> Places:
    facts = [view.layout.facts[place] for place in places]
    called = np.array(
        [fact is not None and fact.called is not False and not fact.aliases for fact in facts], dtype=bool
    )
    cut = places[called] if len(places) else places
    present = np.flatnonzero(view.history.counters.seen > 0)
    if not len(cut) or not len(present):
        return cut[:0]
    position = _positions(view, (*cut, *present))
    # A tied tensor (embedding and output layer) is reached from its late place, and says nothing of its early one.
    untied = np.array([not _is_tied(view.layout.facts[place]) for place in present], dtype=bool)
    live = position[len(cut) :]
    first = live[untied].min() if untied.any() else live.min()
    before = cut[position[: len(cut)] < first]
    # A tensor that runs before every live one but whose module's other tensors are live is no cut (a spare bias).
    live_modules = {_module(view, place) for place in present}
    return np.array([place for place in before if _module(view, place) not in live_modules], dtype=np.int64)


def _positions(view: View, places: tuple[Any, ...]) -> Places:
    """Return execution order; the graph walk orders only what it reached, so registration order stands in for all."""
    facts = [view.layout.facts[place] for place in places]
    if all(fact is not None and fact.order is not None for fact in facts):
        return np.array([fact.order for fact in facts if fact is not None], dtype=np.int64)
    registered = {name: at for at, name in enumerate(view.facts.parameters)} if view.facts else {}
    return np.array([registered.get(view.layout.names[place], place) for place in places], dtype=np.int64)


def _is_tied(fact: ParameterFact | None) -> bool:
    return fact is not None and bool(fact.aliases)


def _module(view: View, place: Any) -> str:
    fact = view.layout.facts[place]
    return fact.module if fact is not None else str(view.layout.names[place]).rpartition(".")[0]
