"""The state of a transform: small vectors, in a tree that can be saved by name and taken up elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradmedic.errors import InputError


@dataclass(slots=True)
class State:
    """What a transform remembers.

    Attributes:
        shared: name -> tensor of any shape: counters, ring buffers.
        by_tensor: name -> tensor whose last axis counts the tensors, N.
        parts: states of the transforms and thresholds inside.
    """

    shared: dict[str, torch.Tensor] = field(default_factory=dict)
    by_tensor: dict[str, torch.Tensor] = field(default_factory=dict)
    parts: dict[str, State] = field(default_factory=dict)


def by_tensor(state: State) -> State:
    """Return the state of a signal of shape [N] as one that belongs to the tensors, and is saved by their names."""
    return State({}, {**state.shared, **state.by_tensor}, {key: by_tensor(part) for key, part in state.parts.items()})


def select(use_first: torch.Tensor, first: State, second: State) -> State:
    """Return `first` where the 0-d flag is set, `second` otherwise; no host sync on a device."""
    if use_first.device.type == "cpu":
        return first if bool(use_first) else second
    return State(
        {key: torch.where(use_first, first.shared[key], value) for key, value in second.shared.items()},
        {key: torch.where(use_first, first.by_tensor[key], value) for key, value in second.by_tensor.items()},
        {key: select(use_first, first.parts[key], value) for key, value in second.parts.items()},
    )


def export_state(state: State, names: Sequence[str]) -> dict[str, Any]:
    """Return a state as a plain mapping, keyed by tensor name, on the CPU."""
    return {
        "shared": {key: value.detach().cpu().clone() for key, value in state.shared.items()},
        "by_tensor": {
            key: {name: column.clone() for name, column in zip(names, value.detach().cpu().unbind(-1), strict=True)}
            for key, value in state.by_tensor.items()
        },
        "parts": {key: export_state(part, names) for key, part in state.parts.items()},
    }


def import_state(fresh: State, saved: Mapping[str, Any], names: Sequence[str], where: str = "state") -> State:
    """Return `fresh` filled with what was saved; tensors that were not saved keep their fresh values.

    Args:
        fresh: what `init` returned for the tensors that there are now.
        saved: what `export_state` returned.
        names: names of the tensors that there are now.
        where: how the error message calls this part.

    Raises:
        InputError: the saved state is another transform's.
    """
    if not isinstance(saved, Mapping) or set(saved) != {"shared", "by_tensor", "parts"}:
        raise InputError(f"{where}: expected what state_dict() returned, got {type(saved).__name__}")
    _same_keys(fresh.shared, saved["shared"], f"{where}.shared")
    _same_keys(fresh.by_tensor, saved["by_tensor"], f"{where}.by_tensor")
    _same_keys(fresh.parts, saved["parts"], f"{where}.parts")
    shared = {key: _like(value, saved["shared"][key], f"{where}.{key}") for key, value in fresh.shared.items()}
    by_tensor = {}
    for key, value in fresh.by_tensor.items():
        column = saved["by_tensor"][key]
        known = value.clone()
        for at, name in enumerate(names):
            if name in column:
                known[..., at] = _like(value[..., at], column[name], f"{where}.{key}[{name!r}]")
        by_tensor[key] = known
    parts = {key: import_state(p, saved["parts"][key], names, f"{where}.{key}") for key, p in fresh.parts.items()}
    return State(shared, by_tensor, parts)


def _same_keys(mine: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> None:
    if set(mine) != set(theirs):
        raise InputError(
            f"{where}: expected the state of this transform, with {sorted(mine)}, got {sorted(theirs)}; make the "
            "transform with the arguments it had when the state was saved"
        )


def _like(fresh: torch.Tensor, saved: Any, where: str) -> torch.Tensor:
    value = torch.as_tensor(saved)
    if value.shape != fresh.shape:
        raise InputError(
            f"{where}: expected the shape {tuple(fresh.shape)}, got {tuple(value.shape)}; make the transform with the "
            "window it had when the state was saved"
        )
    return value.to(fresh.device, fresh.dtype).clone()
