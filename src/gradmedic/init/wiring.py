"""What is known of how a model uses its parameters, whether it was seen in a run or read off the modules' order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from gradmedic.init.gains import activation_name

#: Classes that stand between a layer and its activation and change nothing about which one follows.
_PASSED = ("Dropout", "Pool", "Identity", "Flatten", "Unflatten", "Pad", "Upsample", "Norm", "Shuffle")


@dataclass(slots=True)
class Wiring:
    """Parameters are told by their `id`.

    Attributes:
        follows: what comes after a weight: an activation, "attention", or "linear" for another layer.
        outputs: weights whose results are the model's output.
        branch_ends: last weights (of a layer, or of the norm behind it) of residual branches.
        branches: how many residual branches there are.
        transposed: matrices that stand behind what they multiply: (in, out).
        slopes: slope below zero of the leaky activation that follows.
        traced: whether a sample was run.
    """

    follows: dict[int, str] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)
    branch_ends: set[int] = field(default_factory=set)
    branches: int = 0
    transposed: set[int] = field(default_factory=set)
    slopes: dict[int, float] = field(default_factory=dict)
    traced: bool = False

    def decide(self, weights: Iterable[int], what: str, slope: float = 0.0) -> None:
        """Say what follows these weights; the first word holds."""
        for weight in weights:
            if self.follows.setdefault(weight, what) == what and slope:
                self.slopes.setdefault(weight, slope)


def wiring_by_order(leaves: list[nn.Module]) -> Wiring:
    """Guess from the order in which modules are registered: an activation module follows the layer before it.

    Where none follows, the model's most frequent activation is assumed, since one activation module often serves many
    layers, and functions are not to be seen at all.

    Args:
        leaves: modules without children, in order.
    """
    wiring = Wiring()
    kinds = [name for leaf in leaves if (name := activation_name(type(leaf).__name__))]
    usual = max(set(kinds), key=kinds.count) if kinds else "linear"
    last: int | None = None
    pending: int | None = None
    for leaf in leaves:
        weight = _matrix(leaf)
        name = activation_name(type(leaf).__name__)
        if weight is not None:
            if pending is not None:
                wiring.decide((pending,), usual)
            pending = None if "Embedding" in type(leaf).__name__ else id(weight)
            last = pending if pending is not None else last
        elif name is not None and pending is not None:
            wiring.decide((pending,), name, float(getattr(leaf, "negative_slope", 0.0)))
            pending = None
        elif pending is not None and not any(part in type(leaf).__name__ for part in _PASSED):
            wiring.decide((pending,), usual)
            pending = None
    if last is not None and wiring.follows.get(last, "sigmoid") == "sigmoid":
        wiring.outputs.add(last)
    return wiring


def _matrix(module: nn.Module) -> torch.Tensor | None:
    weight = module._parameters.get("weight")
    return weight if weight is not None and weight.dim() >= 2 else None
