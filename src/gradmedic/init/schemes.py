"""One parameter's initialisation: what it should be, what it is, and writing it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

#: Off by more than this factor is worth a word.
FACTOR = 4.0
#: A constant is off when the values differ from it by more than this (rms): as much as a signal of unit size.
DISTANCE = 1.0
#: Fewer elements say little about a standard deviation.
LEAST = 8

#: Scheme -> what it writes.
SCHEMES: dict[str, str] = {
    "he": "normal, std sqrt(2 / fan_in): in front of ReLU and its kin",
    "xavier": "normal, std sqrt(2 / (fan_in + fan_out)): linear, tanh, sigmoid, attention",
    "lecun": "normal, std 1 / sqrt(fan_in): in front of SELU",
    "orthogonal": "orthogonal, each gate by itself: from one time step to the next",
    "embedding": "normal, std 0.02 or 1 / sqrt(dim)",
    "small": "normal, std 0.25 / sqrt(fan_in): the last layer, so that the first outputs are small",
    "residual": "Xavier's std over sqrt(number of residual branches): the last layer of each",
    "zeros": "0",
    "ones": "1",
    "forget": "0, and 1 for the forget gate: an LSTM's bias",
    "bias": "a constant of your own",
    "keep": "left as it is: not a parameter of a known kind",
}


@dataclass(frozen=True)
class Suggestion:
    """What suits one parameter.

    Attributes:
        name: its qualified name.
        kind: class of the module that owns it.
        scheme: see `SCHEMES`.
        std, mean: of the values to be drawn; a std of 0 means the constant `mean`.
        measured_std, measured_mean: of the values that are there; NaN for a tensor without data.
        off: whether the values there are off by more than 4 times.
        reason: what the choice rests on, for instance "relu follows".
        gates: blocks along axis 0 that are initialised one by one.
    """

    name: str
    kind: str
    scheme: str
    std: float
    mean: float
    measured_std: float
    measured_mean: float
    off: bool
    reason: str
    gates: int
    parameter: torch.Tensor = field(repr=False, compare=False)

    def apply_(self, generator: torch.Generator | None = None) -> None:
        """Write the initial values into the parameter, outside autograd.

        Args:
            generator: where random numbers come from; torch's own of that device by default.
        """
        if self.scheme == "keep" or self.parameter.is_meta:
            return
        with torch.no_grad():
            _WRITERS.get(self.scheme, _write_normal)(self, generator)


def is_off(values: torch.Tensor, std: float, mean: float, *, zero_allowed: bool = False) -> bool:
    """Whether values are off their target: by 4 times in size, by its std in mean, or by 1 from a constant.

    Args:
        values: what is there, any shape.
        std: what their standard deviation should be; 0 for a constant.
        mean: what their mean should be.
        zero_allowed: all zero is a choice of its own here, as in the last layer of a residual branch, or positions.
    """
    if values.is_meta or not values.numel():
        return False
    numbers = values.detach().double()
    if std == 0:
        return not bool((numbers - mean).square().mean().sqrt() <= DISTANCE)
    if values.numel() < LEAST:
        return False
    now, center = float(numbers.std(correction=0)), float(numbers.mean())
    if zero_allowed and now == 0 and center == 0:
        return False
    return not (std / FACTOR <= now <= std * FACTOR and abs(center - mean) <= std)


def measure(values: torch.Tensor) -> tuple[float, float]:
    """Return (std, mean) of a tensor's values, NaN where it has none."""
    if values.is_meta or not values.numel():
        return math.nan, math.nan
    numbers = values.detach().double()
    return float(numbers.std(correction=0)), float(numbers.mean())


def _write_normal(each: Suggestion, generator: torch.Generator | None) -> None:
    if each.std == 0:
        each.parameter.fill_(each.mean)
    else:
        each.parameter.normal_(each.mean, each.std, generator=generator)


def _write_orthogonal(each: Suggestion, generator: torch.Generator | None) -> None:
    for block in each.parameter.chunk(each.gates):
        nn.init.orthogonal_(block, generator=generator)


def _write_forget(each: Suggestion, generator: torch.Generator | None) -> None:
    each.parameter.zero_()
    if each.mean:  # of the two biases that torch adds, only one holds the 1
        each.parameter.chunk(each.gates)[1].fill_(1.0)  # input, forget, cell, output


def _write_embedding(each: Suggestion, generator: torch.Generator | None) -> None:
    rows = each.parameter
    blank = (rows == 0).flatten(1).all(1) if rows.dim() > 1 else None
    _write_normal(each, generator)
    if blank is not None and bool(blank.any()) and not bool(blank.all()):
        rows[blank] = 0  # the padding row


_WRITERS: dict[str, Callable[[Suggestion, torch.Generator | None], None]] = {
    "orthogonal": _write_orthogonal,
    "forget": _write_forget,
    "embedding": _write_embedding,
}
