"""The loss of a step, from the tensors on which `backward()` is called.

A step's loss is the sum of its backward roots since the last step of any optimizer, each divided by the loss scale that
a GradScaler had multiplied it by. It is summed up on the device; nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.probes.graph import reaches, sequence_number
from gradmedic.stats.transfer import moved

#: Outputs that were scaled and never used are forgotten beyond this number.
_MAX_SCALED = 64


@dataclass(slots=True)
class _Scaled:
    """One output of a GradScaler: the scale in force, and the value before it (None unless it is one number)."""

    scale: torch.Tensor
    value: torch.Tensor | None


class LossMeter:
    """Adds up backward roots and remembers the loss scale in force."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._scaled: dict[int, _Scaled] = {}
        self._scale: torch.Tensor | None = None
        self._sum_before: torch.Tensor | None = None
        self.count = 0

    def scaled(self, scaler: Any, outputs: Any, given: Any) -> None:
        """A GradScaler has scaled what it was given (a tensor, or a nest of them)."""
        scale = scaler._scale
        if scale is None:
            return
        # `update()` changes the scale tensor in place: keep the value that was in force.
        in_force = scale.detach().clone()
        after, before = _tensors(outputs), _tensors(given)
        known = before if len(before) == len(after) else [None] * len(after)
        for tensor, value in zip(after, known, strict=True):
            if tensor.grad_fn is not None:
                held = value.detach() if value is not None and value.numel() == 1 else None
                self._scaled[sequence_number(tensor.grad_fn)] = _Scaled(in_force, held)
        while len(self._scaled) > _MAX_SCALED:
            del self._scaled[next(iter(self._scaled))]
        self._scale = in_force

    def overflowed(self, root: torch.Tensor) -> bool:
        """Whether a root that is not finite is so only because the loss scale was too high for a finite loss."""
        behind = self._behind(root)
        return bool(behind) and all(
            each.value is not None and bool(torch.isfinite(each.value).all()) for each in behind
        )

    def _behind(self, root: torch.Tensor) -> list[_Scaled]:
        return [each for number, each in self._scaled.items() if reaches(root, {number})]

    def add(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """Count one outermost backward call and add its roots."""
        self.count += 1
        self._sum_before = self._sum
        weights = [*gradients, *([None] * (len(roots) - len(gradients)))]
        with torch.no_grad():
            for root, weight in zip(roots, weights, strict=False):
                if not root.is_meta:  # it has no value
                    self._add(self._true_value(root, weight))
        self._scaled.clear()

    def _true_value(self, root: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        direct = None if root.grad_fn is None else self._scaled.get(sequence_number(root.grad_fn))
        if direct is not None and direct.value is not None:
            # The loss as it was: a scaled one may have overflowed.
            value, scale = direct.value, None
        else:
            value, scale = root.detach(), self._scale_of(root)
        value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        if weight is not None:
            value = value * weight.detach().to(value.dtype)
        if value.is_complex():
            value = value.real
        value = value.sum() if value.dim() else value
        if scale is not None:
            value = value / moved(scale, value.device)
        return value.to(torch.float64 if value.device.type != "mps" else torch.float32)

    def _scale_of(self, root: torch.Tensor) -> torch.Tensor | None:
        behind = self._behind(root)
        return behind[0].scale if behind else None

    def _add(self, value: torch.Tensor) -> None:
        if self._sum is None:
            self._sum = value.clone()
        else:
            self._sum = self._sum + moved(value, self._sum.device)

    @property
    def loss(self) -> torch.Tensor | None:
        """The sum so far, a 0-d tensor on the loss's device; None if there was no backward call."""
        return self._sum

    @property
    def scale(self) -> torch.Tensor | None:
        """The loss scale in force at the last backward call since the last step; None without a scaler."""
        return self._scale

    def replace(self, loss: torch.Tensor) -> None:
        """A trainer says what the loss so far is, 0-d, in true units."""
        self._sum = loss.detach().to(torch.float64 if loss.device.type != "mps" else torch.float32)

    def take_back(self) -> None:
        """The backward call that was counted last has failed."""
        self._sum = self._sum_before
        self.count = max(0, self.count - 1)

    def drop(self) -> None:
        """What was added so far will not be used: its gradients were erased without a step."""
        self._sum = self._sum_before = None
        self.count = 0

    def restart(self) -> None:
        """Begin anew: an optimizer has stepped, or a closure is about to be evaluated again."""
        self._sum = self._sum_before = None
        self._scale = None
        self.count = 0


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [each for part in value for each in _tensors(part)] if isinstance(value, (list, tuple)) else []
