"""What is measured of one output of a module, or of the gradient that flows back into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradmedic.stats import StatsTable, gradient_stats
from gradmedic.stats.native import measure_one
from gradmedic.types import COUNT_COLUMNS, MOMENT_COLUMNS, Backend

#: Where an activation counts as saturated: (below, above). Karpathy's 0.97 for tanh; the same distance for sigmoids.
SATURATION: dict[str, tuple[float, float]] = {
    "Tanh": (-0.97, 0.97),
    "Softsign": (-0.97, 0.97),
    "Hardtanh": (-1.0, 1.0),
    "Sigmoid": (0.015, 0.985),
    "Hardsigmoid": (0.0, 1.0),
}
#: Activations whose units are dead when they are never above zero.
RECTIFIERS = frozenset({"ReLU", "ReLU6", "Threshold", "Hardswish", "Softshrink", "Hardshrink"})
_CHANNELS_FIRST = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "Pool", "Upsample", "ConstantPad", "PixelShuffle")


@dataclass(slots=True)
class ModuleSample:
    """One measurement of one step, as the device left it.

    Attributes:
        module: the module's name.
        what: "output", "grad_output", or a kind of its own ("filters", "attention", …).
        call: which of the module's calls in this step, from 0.
        leaf: which tensor of the output.
        table: statistics of it, one row; None where there are none, or they are in `known`.
        known: the same as numbers, moments and counts, where the host could read them at once.
        numbers: further columns, 0-d tensors: "saturated_frac", "units", "inactive_units", ….
        extra: numbers that have no column of their own.
    """

    module: str
    what: str
    call: int = 0
    leaf: str = "0"
    table: StatsTable | None = None
    known: tuple[list[float], list[int]] | None = None
    numbers: dict[str, torch.Tensor | float] = field(default_factory=dict)
    extra: dict[str, torch.Tensor | float] = field(default_factory=dict)

    def pack(
        self, add: Callable[[torch.Tensor | None], int], get: Callable[[int], Any]
    ) -> Callable[[], dict[str, Any]]:
        """Put the tensors into a parcel; the function returned makes the row once it has arrived.

        Args:
            add: puts a tensor in and returns its place.
            get: takes an array out again.
        """
        tensors = (None, None) if self.table is None else (self.table.moments, self.table.counts)
        places = [add(each) for each in tensors]
        numbers = {key: _place(value, add) for key, value in self.numbers.items()}
        extra = {key: _place(value, add) for key, value in self.extra.items()}

        def row() -> dict[str, Any]:
            made: dict[str, Any] = {"module": self.module, "what": self.what, "call": self.call, "leaf": self.leaf}
            found = self.known
            if self.table is not None:
                moments, counts = (get(place).reshape(-1).tolist() for place in places)
                found = moments, [int(value) for value in counts]
            if found is not None:
                made.update(zip(MOMENT_COLUMNS, found[0], strict=True))
                made.update(zip(COUNT_COLUMNS, found[1], strict=True))
                finite = made["numel"] - made["nan_count"] - made["inf_count"]
                made["rms"] = made["norm"] / finite**0.5 if finite else 0.0
            made.update({key: _value(place, get) for key, place in numbers.items()})
            made["extra"] = {key: _value(place, get) for key, place in extra.items()}
            return made

        return row


def _place(value: torch.Tensor | float, add: Callable[[torch.Tensor | None], int]) -> int | float:
    return add(value) if isinstance(value, torch.Tensor) else float(value)


def _value(place: int | float, get: Callable[[int], Any]) -> float:
    return place if isinstance(place, float) else float(get(place).reshape(-1)[0])


def unit_axis(kind: str, dim: int) -> int | None:
    """Return the axis of an output's units (channels or features); None for a scalar or a vector."""
    if dim < 2:
        return None
    if dim >= 4 or (dim == 3 and any(part in kind for part in _CHANNELS_FIRST)):
        return 1
    return dim - 1


def measurable(tensor: Any) -> bool:
    """Whether statistics of a tensor can be taken: dense floating numbers that are really there."""
    return (
        isinstance(tensor, torch.Tensor)
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_nested
        and tensor.numel() > 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)  # of `autograd.grad(is_grads_batched=True)`
    )


def measured(module: str, what: str, tensor: torch.Tensor, backend: Backend) -> ModuleSample:
    """Return the statistics of a tensor.

    Args:
        module, what: of the sample.
        tensor: one that is `measurable`.
        backend: which statistics backend.
    """
    known = measure_one(tensor) if backend in ("auto", "native") else None
    if known is not None:
        return ModuleSample(module, what, known=known)
    return ModuleSample(module, what, table=gradient_stats([tensor.detach()], backend=backend))


def measure_output(module: str, kind: str, tensor: torch.Tensor, backend: Backend) -> ModuleSample:
    """Return the statistics of an output; for activations that saturate, the share of elements that are."""
    sample = measured(module, "output", tensor, backend)
    bounds = SATURATION.get(kind)
    if bounds is not None and not tensor.is_complex():
        low, high = bounds
        with torch.no_grad():
            sample.numbers["saturated_frac"] = ((tensor <= low) | (tensor >= high)).double().mean()
    return sample


def all_active(tensor: torch.Tensor, units: int, zeros: int | None) -> bool:
    """Whether the number of zeros tells that no unit is zero everywhere: there are fewer than a unit has elements."""
    return zeros is not None and zeros < tensor.numel() // units


@torch.no_grad()
def active_units(kind: str, tensor: torch.Tensor, zeros: int | None = None) -> torch.Tensor | None:
    """Return which units are not zero anywhere in this batch, bool [units]; None where there are no units.

    Args:
        kind: class of the module.
        tensor: its output, or the gradient there.
        zeros: number of zeros in it, if the host knows: with fewer than a unit has elements, all units are active.
    """
    axis = unit_axis(kind, tensor.dim())
    if axis is None:
        return None
    units = tensor.shape[axis]
    if all_active(tensor, units, zeros):
        return torch.ones(units, dtype=torch.bool, device=tensor.device)
    others = [dim for dim in range(tensor.dim()) if dim != axis]
    values = tensor.detach()
    if values.is_complex() or values.element_size() == 1:  # they have no order
        return _any(values != 0, others)
    # Several times as fast as `any` of what is not zero, and without that; NaN spreads, and is not zero.
    return (values.amax(dim=others) != 0) | (values.amin(dim=others) != 0)


def _any(flags: torch.Tensor, dims: list[int]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        flags = flags.any(dim=dim)
    return flags
