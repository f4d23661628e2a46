"""What the optimizers of a trainer are called: after the part of the model that each of them steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from gradmedic.holdings import held_by
from gradmedic.names import name_parameters, unique


def name_optimizers(model: nn.Module, optimizers: Sequence[Any]) -> dict[str, Any] | None:
    """Name optimizers for `gm.watch`.

    Args:
        model: whose parameters they step.
        optimizers: torch optimizers, wrappers of trainers taken off.

    Returns:
        name -> optimizer: "optimizer" for a single one; of several each has the name of the part of the model that
        holds all of its tensors ("generator"), or else "optimizer", numbered where names meet. None when there is none,
        or one that holds nothing of the model.
    """
    if not optimizers:
        return None
    known = {key: entry.name for key, entry in name_parameters({"": model}).items()}
    named: dict[str, Any] = {}
    for optimizer in optimizers:
        names = [known[id(parameter)] for parameter in held_by(optimizer) if id(parameter) in known]
        if not names:
            return None
        part = "" if len(optimizers) == 1 else common_module(names)
        named[unique(part or "optimizer", named)] = optimizer
    return named


def common_module(names: Sequence[str]) -> str:
    """Return the module that holds all of these parameters; "" where only the whole model does."""
    shared = names[0].split(".")[:-1]
    for name in names[1:]:
        parts = name.split(".")[:-1]
        while shared and parts[: len(shared)] != shared:
            shared.pop()
    return ".".join(shared)
