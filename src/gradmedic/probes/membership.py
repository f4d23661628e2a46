"""Which optimizer owns which tensor, and what an optimizer holds that no watched model has."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gradmedic.facts import Facts
from gradmedic.holdings import held_by
from gradmedic.roster import Roster


def describe_optimizer(
    name: str, optimizer: Any, roster: Roster, owners: dict[int, str], facts: Facts
) -> list[dict[str, Any]]:
    """Note an optimizer in the facts.

    Args:
        name: what it is called.
        optimizer: anything with `param_groups`.
        roster: the watched models.
        owners: gains id(parameter) -> name for each tensor it holds.
        facts: gains its description.

    Returns:
        What it holds that no watched model has: {"optimizer", "name", "shape", "twin"}, where `twin` is a model
        parameter of the same shape that no optimizer holds, if there is one: the model was copied or rebuilt since.
    """
    held = held_by(optimizer)
    owners.update((id(parameter), name) for parameter in held)
    foreign = [
        (position, tuple(parameter.shape))
        for position, parameter in enumerate(held)
        if not is_lazy(parameter) and _is_foreign(roster, parameter)
    ]
    facts.optimizers[name] = {
        "class": type(optimizer).__name__,
        "defaults": _plain(getattr(optimizer, "defaults", {})),
        "numel": sum(parameter.numel() for parameter in held if not is_lazy(parameter)),
        "tensors": len(held),
    }
    twins: dict[tuple[int, ...], list[str]] = {}
    for entry in roster.parameters:
        parameter = entry.reference()
        if parameter is not None and not is_lazy(parameter) and id(parameter) not in owners:
            twins.setdefault(tuple(parameter.shape), []).append(entry.name)
    entries = [
        {"optimizer": name, "name": f"{name}[{position}]", "shape": list(shape), "twin": _next_of(twins.get(shape))}
        for position, shape in foreign
    ]
    # Where models are being found, a tensor of no module may well be meant so, unless a module has one in its place.
    return [entry for entry in entries if entry["twin"] is not None or not roster.discovering]


def _next_of(names: list[str] | None) -> str | None:
    """Return the first name, and take it away while there are others: layers of one shape are told apart by order."""
    if not names:
        return None
    return names.pop(0) if len(names) > 1 else names[0]


def _is_foreign(roster: Roster, parameter: torch.Tensor) -> bool:
    entry = roster.lookup(parameter)
    return entry is None or roster.is_bare(parameter)


def _plain(defaults: dict[str, Any]) -> dict[str, Any]:
    """Return what can be written down: numbers, flags, texts, and short sequences of numbers such as Adam's betas."""
    kept = {key: list(value) if isinstance(value, (tuple, list)) else value for key, value in defaults.items()}
    return {key: value for key, value in kept.items() if isinstance(value, (int, float, str, bool)) or _short(value)}


def _short(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 4 and all(isinstance(each, (int, float)) for each in value)
