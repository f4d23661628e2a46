"""What can be done to gradients: the vocabulary of decisions. `gradmedic.clip.apply` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiply by one factor, 0-d, or by one for each tensor, [N]; float64. Exactly 1 changes no bit."""

    factor: torch.Tensor


@dataclass(frozen=True, slots=True)
class UnitScale:
    """Multiply each output unit by a factor of its own.

    Attributes:
        factors: position of a tensor -> factors [units] float64, 0-d where the tensor is one unit.
        dims: position -> axis of the units, None where the tensor is one unit.
        norms: position -> norm of the tensor afterwards, 0-d float64.
    """

    factors: Mapping[int, torch.Tensor]
    dims: Mapping[int, int | None]
    norms: Mapping[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """Clamp each element to [-limit, limit], in true units; complex ones by their real and imaginary parts."""

    limits: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class MomentLimit:
    """Clamp each element g to g^2 <= theta * v; where v is 0 nothing is known yet, and nothing is clamped.

    Attributes:
        theta: > 0.
        moments: position -> second moment v, shaped as the gradient.
    """

    theta: float
    moments: Mapping[int, torch.Tensor]


Operation = Scale | UnitScale | Limit | MomentLimit
