"""What goes wrong in a step: kinds of faults, how often each comes, and how a bit flips. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch


class Kind(Enum):
    """What goes wrong; the value is its name in tables."""

    TOKENS = "bad batch: all tokens alike"
    LABELS = "bad batch: random labels"
    INPUTS = "bad batch: embedded inputs x 1,000"
    LOSS = "loss x 1,000"
    ACTIVATION = "bit flip in an activation"
    HALF_GRADIENT = "bit flip in an fp16 gradient, still scaled"
    GRADIENT = "bit flip in an fp32 gradient, unscaled"
    NAN = "NaN in an unscaled gradient"
    INF = "inf in an unscaled gradient"


#: Mean number of faults in 10,000 steps: one step in 40 has one.
RATES: dict[Kind, int] = {
    Kind.TOKENS: 30,
    Kind.LABELS: 30,
    Kind.INPUTS: 30,
    Kind.LOSS: 30,
    Kind.ACTIVATION: 30,
    Kind.HALF_GRADIENT: 30,
    Kind.GRADIENT: 30,
    Kind.NAN: 20,
    Kind.INF: 20,
}

#: Exponent bits, least first: (first, number of them).
EXPONENT = {torch.float16: (10, 5), torch.float32: (23, 8)}
_BITS = {torch.float16: torch.int16, torch.float32: torch.int32}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        kind: what goes wrong.
        place: which element, as a share in [0, 1) of all there are.
        bit: which exponent bit, as a share in [0, 1).
        layer: which layer, as a share in [0, 1).
    """

    kind: Kind
    place: float
    bit: float
    layer: float


def draw(seed: int, steps: int, rates: dict[Kind, int] = RATES) -> dict[int, Fault]:
    """Return step -> fault: at most one a step, the same for every arm, and for any larger number of steps.

    Args:
        seed: of the run.
        steps: how many steps there are.
        rates: mean number in 10,000 steps.

    Returns:
        The faults, by the number of the step.
    """
    rng = np.random.default_rng([seed, 1])
    kinds = list(rates)
    edges = np.cumsum([rates[kind] for kind in kinds]) / 10_000
    table = rng.random((steps, 4))
    which = np.searchsorted(edges, table[:, 0], side="right")
    return {
        step: Fault(kinds[at], *(float(x) for x in table[step, 1:])) for step, at in enumerate(which) if at < len(kinds)
    }


def pick(share: float, count: int) -> int:
    """Return an index in [0, count) for a share in [0, 1)."""
    return min(int(share * count), count - 1)


def flip_exponent_bit(values: torch.Tensor, at: int, bit: float) -> None:
    """Flip one exponent bit of one element, in place.

    Args:
        values: contiguous fp16 or fp32 tensor.
        at: which element, in memory order.
        bit: which of its exponent bits, as a share in [0, 1), the least significant first.
    """
    first, count = EXPONENT[values.dtype]
    bits = values.detach().view(_BITS[values.dtype]).view(-1)
    bits[at] ^= 1 << (first + pick(bit, count))


def locate(tensors: list[torch.Tensor], share: float) -> tuple[int, int]:
    """Return (tensor, element) for a share in [0, 1) of all elements of all tensors."""
    at = pick(share, sum(tensor.numel() for tensor in tensors))
    for position, tensor in enumerate(tensors):
        if at < tensor.numel():
            return position, at
        at -= tensor.numel()
    raise AssertionError("unreachable: `at` is less than the number of all elements")


def flip_one(tensors: list[torch.Tensor], fault: Fault) -> None:
    """Flip an exponent bit of the element of these tensors that the fault means."""
    position, at = locate(tensors, fault.place)
    flip_exponent_bit(tensors[position], at, fault.bit)


def set_one(tensors: list[torch.Tensor], fault: Fault, value: float) -> None:
    """Set the element of these tensors that the fault means."""
    position, at = locate(tensors, fault.place)
    tensors[position].detach().view(-1)[at] = value
