"""Activations, wherever they were computed: what their nodes have saved tells of dead and of saturated units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.probes.module_stats import SATURATION
from gradmedic.probes.node_values import operation, saved, scalar
from gradmedic.stats.native_readings import count_units

#: Elements that are looked at, at most; rows of the batch are left out evenly beyond.
MAX_ELEMENTS = 2**20
#: A unit is saturated when so much of what it puts out is (rules.md).
_MOSTLY = 0.9
#: After so many batches a unit's activity is counted anew: units that die late have been active once.
WINDOW = 20

#: Where an activation puts out nothing that the next layer can tell from zero: |gelu(x)| < 1e-3 below -3.5, and
#: |silu(x)| < 1e-3 below -9.2. By operation: the saved tensor, and what it is above where the activation is active.
_ACTIVE: dict[str, tuple[str, float]] = {
    "Relu": ("result", 0.0),
    "Gelu": ("self", -3.5),
    "Silu": ("self", -9.2),
    "Hardswish": ("self", -3.0),
}
_CHANNELS_FIRST = ("Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeGroupNorm", "MiopenBatchNorm", "Mkldnn")


@dataclass(frozen=True, slots=True)
class Flags:
    """An activation's elements, and which of them are flagged: those above a bound, or not between two.

    Attributes:
        values: what the activation's node has saved of it.
        above: elements above it are active; None where they are flagged when saturated.
        low, high: elements that are not between these have no slope left.
    """

    values: torch.Tensor
    above: float | None = None
    low: float = math.nan
    high: float = math.nan

    def per_unit(self, axis: int) -> torch.Tensor:
        """Return for how many samples each unit is flagged, [units]; no host sync."""
        above = math.nan if self.above is None else self.above
        counts = count_units(self.values, axis, above=above, high=self.high, low=self.low)
        if counts is not None:
            return counts
        values = self.values
        flags = (values <= self.low) | (values >= self.high) if self.above is None else values > self.above
        return flags.sum(dim=[dim for dim in range(flags.dim()) if dim != axis])


def is_activation(node: Any) -> bool:
    """Whether a node is an activation that can die or saturate."""
    kind = operation(node)
    return (
        kind in _ACTIVE
        or kind in ("Tanh", "Sigmoid", "Hardtanh")
        or (kind in ("Clamp", "ClampMin") and scalar(node, "min") == 0 and scalar(node, "max") is None)
    )


@torch.no_grad()
def read_flags(node: Any) -> Flags | None:
    """Return an activation's elements and how to tell the active or the saturated ones; None where nothing was saved.

    Args:
        node: a node of the graph, before its backward pass.

    Returns:
        At most about a million elements, whole rows of the batch, as the node has them.
    """
    kind = operation(node)
    if kind in ("Clamp", "ClampMin"):
        return _flags(node, "self", above=_ACTIVE["Relu"][1])
    if kind in _ACTIVE:
        name, above = _ACTIVE[kind]
        return _flags(node, name, above=above)
    if kind != "Hardtanh":
        low, high = SATURATION[kind]
        return _flags(node, "result", low=low, high=high)
    bounds = scalar(node, "min_val"), scalar(node, "max_val")
    if bounds[0] is None or bounds[1] is None:
        return None
    if bounds[0] == 0:  # ReLU6 is a rectifier
        return _flags(node, "self", above=0.0)
    return _flags(node, "self", low=bounds[0], high=bounds[1])


def _flags(node: Any, name: str, **bounds: float) -> Flags | None:
    values = _some(saved(node, name))
    return None if values is None else Flags(values, **bounds)


def _some(values: torch.Tensor | None) -> torch.Tensor | None:
    if values is None or values.is_complex() or values.dim() < 2:
        return None
    stride = max(1, -(-values.numel() // MAX_ELEMENTS))
    return values[:: min(stride, values.shape[0])]


def unit_axis(dim: int, source: str) -> int:
    """Return the axis of an activation's units.

    Args:
        dim: number of dimensions, >= 2.
        source: operation that uses the parameter in front of it ("Convolution", "Addmm", ...).
    """
    if dim == 2 or source.startswith(_CHANNELS_FIRST):
        return 1
    linear = source.startswith(("Addmm", "Mm", "Add", "Bmm", "NativeLayerNorm", "Linear", "Embedding", "Mul"))
    return dim - 1 if dim == 3 or linear else 1


class Units:
    """Which units of one activation have been active in the last 20 to 40 sampled batches."""

    __slots__ = ("_former", "_former_batches", "_recent", "_recent_batches")

    def __init__(self) -> None:
        self._recent: torch.Tensor | None = None
        self._former: torch.Tensor | None = None
        self._recent_batches = self._former_batches = 0

    def add(self, active: torch.Tensor) -> None:
        """Take one batch: bool [units]."""
        if self._recent is not None and (self._recent.shape != active.shape or self._recent.device != active.device):
            self._recent = self._former = None
            self._recent_batches = self._former_batches = 0
        if self._recent_batches == WINDOW:
            self._former, self._former_batches = self._recent, WINDOW
            self._recent, self._recent_batches = None, 0
        self._recent = active if self._recent is None else self._recent | active
        self._recent_batches += 1

    @property
    def batches(self) -> int:
        """So many batches are remembered."""
        return self._recent_batches + self._former_batches

    def inactive(self) -> torch.Tensor:
        """Return how many units were active in none of them, a 0-d tensor."""
        assert self._recent is not None
        ever = self._recent if self._former is None else self._recent | self._former
        return (~ever).double().sum() if ever.device.type != "mps" else (~ever).float().sum()


def activation_numbers(flags: Flags, axis: int, units: Units) -> tuple[dict[str, torch.Tensor | float], ...]:
    """Return the columns and the extra numbers of an activation's row.

    Args:
        flags: what `read_flags` returned.
        axis: of the units.
        units: what is remembered of this activation; it is brought up to date.
    """
    counts = flags.per_unit(axis)
    size = flags.values.numel()
    samples = size // counts.numel()
    numbers: dict[str, torch.Tensor | float] = {"units": float(counts.numel())}
    extra: dict[str, torch.Tensor | float] = {"samples": float(samples)}
    if flags.above is not None:
        active = counts > 0
        units.add(active)
        numbers |= {"inactive_units": units.inactive(), "batches": float(units.batches)}
        extra |= {"zero_frac": 1 - counts.sum() / size, "inactive_now": (~active).sum()}
    else:
        numbers["saturated_frac"] = counts.sum() / size
        extra["saturated_units"] = (counts > _MOSTLY * samples).sum()
    return numbers, extra
