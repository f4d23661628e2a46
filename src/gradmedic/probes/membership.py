"""Which optimizer owns which tensor, and what an optimizer holds that no watched model has."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gradmedic.facts import Facts
from gradmedic.holdings import held_by, held_in
from gradmedic.roster import Roster

#: What is kept of the groups of an optimizer without defaults.
_SETTINGS = frozenset(
    {"weight_decay", "eps", "betas", "momentum", "alpha", "dampening", "decoupled_weight_decay", "maximize", "nesterov"}
)


def describe_optimizer(
    name: str, optimizer: Any, roster: Roster, owners: dict[int, tuple[str, int]], facts: Facts
) -> list[dict[str, Any]]:
    """Note an optimizer in the facts.

    Args:
        name: what it is called.
        optimizer: anything with `param_groups`.
        roster: the watched models.
        owners: gains id(parameter) -> (name, place of its parameter group) for each tensor it holds.
        facts: gains its description.

    Returns:
        What it holds that no watched model has: {"optimizer", "name", "shape", "twin"}, where `twin` is a model
        parameter of the same shape that no optimizer holds, if there is one: the model was copied or rebuilt since.
    """
    held = held_by(optimizer)
    owners.update(
        (id(parameter), (name, place))
        for place, group in enumerate(optimizer.param_groups)
        for parameter in held_in(group)
    )
    foreign = [
        (position, tuple(parameter.shape))
        for position, parameter in enumerate(held)
        if not is_lazy(parameter) and _is_foreign(roster, parameter)
    ]
    facts.optimizers[name] = {
        "class": type(optimizer).__name__,
        "defaults": _plain(getattr(optimizer, "defaults", {})),
        **_groups(optimizer),
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


def _groups(optimizer: Any) -> dict[str, Any]:
    """Return under "groups" the settings that each parameter group has of its own; nothing for one like the defaults.

    Learning rates, and what schedulers leave behind (`initial_lr`), are no settings here: frames hold the rates.
    """
    defaults = _plain(getattr(optimizer, "defaults", {}))
    known = (set(defaults) or _SETTINGS) - {"lr"}
    own = [
        {key: value for key, value in _plain(group).items() if key in known and value != defaults.get(key)}
        for group in optimizer.param_groups
    ]
    return {"groups": own} if len(own) > 1 or any(own) else {}


def coarse(optimizers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return optimizers as they are compared with what was told of them before.

    Schedulers move the settings of groups from step to step (OneCycleLR the betas): only what has halved or doubled is
    worth writing down all that is known of the run once more.
    """
    return {
        name: {**entry, "groups": [{key: _rounded(value) for key, value in own.items()} for own in entry["groups"]]}
        if "groups" in entry
        else entry
        for name, entry in optimizers.items()
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value and math.isfinite(value):
        return math.copysign(1.0, value), round(math.log2(abs(value)))
    return value


def _short(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 4 and all(isinstance(each, (int, float)) for each in value)
