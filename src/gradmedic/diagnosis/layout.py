"""What is known of an optimizer's tensors, as arrays in the order of its tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.facts import Facts, ParameterFact

Array = npt.NDArray[Any]

_NORM_KIND = re.compile(r"norm", re.IGNORECASE)
_EMBEDDING_KIND = re.compile(r"embed", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Layout:
    """Arrays over the P tensors of one optimizer.

    Attributes:
        names: their names.
        facts: their facts, None for a tensor that is not a parameter of a watched model.
        order: place in execution order [P]; where it is unknown, the place in `names`.
        ndim, numel: [P].
        matrix: whether it is a weight of at least two dimensions that is no embedding [P].
        low_precision: whether it is bfloat16 or float16 [P].
        cache: what others derive from the layout, so that they do it once.
    """

    names: tuple[str, ...]
    facts: tuple[ParameterFact | None, ...]
    order: Array
    ndim: Array
    numel: Array
    matrix: Array
    low_precision: Array
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def sorted(self, places: Array) -> Array:
        """Return places in execution order."""
        chosen: Array = np.asarray(places)[np.argsort(self.order[places], kind="stable")]
        return chosen

    def pick(self, places: Array) -> tuple[str, ...]:
        """Return the names at `places`, in execution order."""
        return tuple(self.names[place] for place in self.sorted(np.asarray(places, dtype=np.int64)))


def layout_of(names: tuple[str, ...], facts: Facts | None) -> Layout:
    """Return the layout of an optimizer's tensors; without facts, guess from the names."""
    known = tuple(facts.parameters.get(name) if facts else None for name in names)
    orders = [fact.order if fact is not None else None for fact in known]
    use_order = any(order is not None for order in orders)
    last = len(names)
    order = [place if not use_order else (last + place if o is None else o) for place, o in enumerate(orders)]
    return Layout(
        names=names,
        facts=known,
        order=np.array(order, dtype=np.int64),
        ndim=np.array(
            [len(fact.shape) if fact else (2 if _looks_matrix(n) else 1) for n, fact in zip(names, known, strict=True)],
            dtype=np.int64,
        ),
        numel=np.array([fact.numel if fact else 0 for fact in known], dtype=np.int64),
        matrix=np.array([_is_matrix(n, fact) for n, fact in zip(names, known, strict=True)], dtype=bool),
        low_precision=np.array([fact is not None and fact.low_precision for fact in known], dtype=bool),
    )


def is_norm(fact: ParameterFact) -> bool:
    """Whether the parameter belongs to a normalisation layer."""
    return bool(_NORM_KIND.search(fact.kind))


def is_embedding(name: str, fact: ParameterFact | None) -> bool:
    """Whether the tensor is an embedding, by its module's class or, failing that, by its name."""
    return bool(_EMBEDDING_KIND.search(name) or (fact is not None and _EMBEDDING_KIND.search(fact.kind)))


def template(name: str) -> str:
    """Return a name with its numbers masked: siblings such as `experts.0.weight` and `experts.7.weight` share it."""
    return _NUMBER.sub("#", name)


def _is_matrix(name: str, fact: ParameterFact | None) -> bool:
    if fact is None:
        return _looks_matrix(name)
    return len(fact.shape) >= 2 and not is_embedding(name, fact)


def _looks_matrix(name: str) -> bool:
    return name.endswith("weight") and not re.search(r"norm|bn\d*\.|ln_|embed", name, re.IGNORECASE)
