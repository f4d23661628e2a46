"""A true skip: the step is called, and weights, moments, step counters and decay stay as they are."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class Withheld(Protocol):
    """What was taken away for one step."""

    def put_back(self) -> None:
        """The step is over."""

    def abandon(self) -> None:
        """The step never ended (it raised): leave nothing behind that would bind the steps to come."""


def honours_found_inf(optimizer: Any) -> bool:
    """Whether an optimizer skips by itself when its `found_inf` is set, and leaves nothing behind.

    Fused optimizers do, where they have their state already. On a step that creates state it depends: Adam and AdamW
    make zeros and a step count of 0, which is what they would begin with anyway, and SGD without momentum makes none;
    but SGD leaves its momentum buffer uninitialised, which ruins the weights one step later, and nothing is known of
    others: there the gradients have to be dropped instead.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    state = getattr(optimizer, "state", {})
    return all(
        all(p.grad is None or state.get(p) for p in group["params"]) or _begins_with_zeros(optimizer, group)
        for group in optimizer.param_groups
    )


def _begins_with_zeros(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether what an optimizer makes on the first step of a group is good even where that step is skipped."""
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        return not group.get("momentum")
    return kind in (torch.optim.Adam, torch.optim.AdamW)


@dataclass(slots=True)
class _Flags:
    """The flags that are set on one optimizer, and what was there before the first."""

    former: Any
    flags: list[torch.Tensor] = field(default_factory=list)


#: Several monitors may set flags on one optimizer, and take them off in any order.
_flags: weakref.WeakKeyDictionary[Any, _Flags] = weakref.WeakKeyDictionary()


class FlaggedSkip:
    """Lets a fused optimizer decide on the device: it makes no step where the flag is set. No host sync.

    Args:
        optimizer: one that honours `found_inf`.
        skip: 0-d bool.
    """

    def __init__(self, optimizer: Any, skip: torch.Tensor) -> None:
        self._optimizer: weakref.ref[Any] = weakref.ref(optimizer)
        self.flag = skip.to(torch.float32)
        held = _flags.get(optimizer)
        if held is None:
            held = _flags[optimizer] = _Flags(getattr(optimizer, "found_inf", None))
        held.flags.append(self.flag)
        _set(optimizer, held)

    def put_back(self) -> None:
        """Take the flag off; the last one to go leaves what was there before."""
        optimizer = self._optimizer()
        held = None if optimizer is None else _flags.get(optimizer)
        if held is None:
            return
        held.flags = [flag for flag in held.flags if flag is not self.flag]
        if not held.flags:
            del _flags[optimizer]
        _set(optimizer, held)

    def abandon(self) -> None:
        """Take the flag off."""
        self.put_back()


def _set(optimizer: Any, held: _Flags) -> None:
    # The kernels compare with exactly 1; a scaler's flag, summed over devices, may be 2.
    former = held.former.clamp(max=1) if isinstance(held.former, torch.Tensor) and held.flags else held.former
    flags = [*held.flags, *([former] if isinstance(former, torch.Tensor) else [])]
    if held.flags:
        combined = flags[0]
        for flag in flags[1:]:
            combined = torch.maximum(combined, flag)
        optimizer.found_inf = combined
    elif held.former is not None:
        optimizer.found_inf = held.former
    elif hasattr(optimizer, "found_inf"):
        del optimizer.found_inf


class DroppedGradients:
    """Takes the gradients away, so that any optimizer passes the parameters over.

    Args:
        parameters: those of the optimizer.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._held = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter, _ in self._held:
            parameter.grad = None

    def put_back(self) -> None:
        """Put the gradients back where there is none."""
        for parameter, gradient in self._held:
            if parameter.grad is None:
                parameter.grad = gradient
        self._held = []

    def abandon(self) -> None:
        """Forget them: by now the gradients are those of another step."""
        self._held = []
