"""The numbers by which one of the user's own transforms would change gradients: NaN never multiplies a gradient.

What lies on the host is looked at, and a wrong answer is refused. What lies on a device is not read back: there what is
no factor counts as 1, which changes no bit, and how many there were arrives with the step's frame.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from gradmedic.clip.base import Decision
from gradmedic.clip.operations import MomentLimit, Operation, Scale, UnitScale
from gradmedic.stats.transfer import moved

#: With this before the transform's name a decision notes how many factors counted as 1; kept in a frame where some did.
BAD_FACTORS = "bad factors of "


def unsound(operation: Operation, on_host: bool) -> str | None:
    """Return in words what is wrong with the numbers of an operation, as far as they may be read; None for nothing."""
    if isinstance(operation, Scale):
        return _of_factor(operation.factor, "Scale", on_host)
    if isinstance(operation, UnitScale):
        found = (_of_factor(factor, "UnitScale", on_host) for factor in operation.factors.values())
        return next((trouble for trouble in found if trouble is not None), None)
    if isinstance(operation, MomentLimit):
        if not _is_no_limit(operation.theta, on_host):
            return None
        return f"{float(operation.theta):g} for theta of MomentLimit; expected a number > 0"
    bad = [limit for limit in operation.limits.values() if _is_no_limit(limit, on_host)]
    return f"{float(bad[0]):g} for a limit of Limit; expected a number > 0" if bad else None


def made_sound(decision: Decision, name: str, on_host: bool) -> Decision:
    """Return a decision in which factors that may not be read are finite and not negative; 1 stands for others.

    Args:
        decision: of a transform of the user's own.
        name: of the transform, for the note of how many factors were replaced.
        on_host: whether what lies on the CPU may be read, and has been.
    """
    counts: list[torch.Tensor] = []
    operations = tuple(_sound_operation(each, counts, on_host) for each in decision.operations)
    if not counts:
        return decision
    bad = torch.stack([moved(count, counts[0].device) for count in counts]).sum()
    return replace(decision, operations=operations, notes={**decision.notes, f"{BAD_FACTORS}{name}": bad})


def _sound_operation(operation: Operation, counts: list[torch.Tensor], on_host: bool) -> Operation:
    if isinstance(operation, Scale):
        return Scale(_sound(operation.factor, counts, on_host))
    if isinstance(operation, UnitScale):
        factors = {at: _sound(factor, counts, on_host) for at, factor in operation.factors.items()}
        return replace(operation, factors=factors)
    return operation


def _sound(factor: torch.Tensor, counts: list[torch.Tensor], on_host: bool) -> torch.Tensor:
    if not _is_real(factor) or _readable(factor, on_host):
        return factor
    good = torch.isfinite(factor) & (factor >= 0)
    counts.append((~good).sum())
    return torch.where(good, factor, torch.ones_like(factor))


def _of_factor(factor: Any, name: str, on_host: bool) -> str | None:
    if not _is_real(factor) or not _readable(factor, on_host):
        return None
    bad = [number for number in factor.reshape(-1).tolist() if not (math.isfinite(number) and number >= 0)]
    return f"{bad[0]:g} for a factor of {name}; expected finite numbers >= 0" if bad else None


def _is_no_limit(limit: Any, on_host: bool) -> bool:
    if isinstance(limit, torch.Tensor) and not _readable(limit, on_host):
        return False
    try:
        return not float(limit) > 0
    except (TypeError, ValueError, RuntimeError):
        return False  # no number at all, which shows when it is used


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_complex()


def _readable(values: torch.Tensor, on_host: bool) -> bool:
    return on_host and values.device.type == "cpu"
