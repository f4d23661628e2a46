"""The loss of a step, from the tensors on which `backward()` is called.

A step's loss is the sum of its backward roots since the last step of any optimizer, each divided by the loss scale that
a GradScaler had multiplied it by. It is summed up on the device; nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.probes.graph import reaches, sequence_number


class LossMeter:
    """Adds up backward roots and remembers the loss scale in force."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._scaled_nodes: dict[int, torch.Tensor] = {}
        self._scale: torch.Tensor | None = None
        self.count = 0

    def scaled(self, scaler: Any, outputs: Any) -> None:
        """A GradScaler has scaled these outputs (a tensor, or a nest of them)."""
        scale = scaler._scale
        if scale is None:
            return
        # `update()` changes the scale tensor in place: keep the value that was in force.
        in_force = scale.detach().clone()
        for tensor in _tensors(outputs):
            if tensor.grad_fn is not None:
                self._scaled_nodes[sequence_number(tensor.grad_fn)] = in_force
        self._scale = in_force

    def add(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """Count one outermost backward call and add its roots."""
        self.count += 1
        weights = [*gradients, *([None] * (len(roots) - len(gradients)))]
        with torch.no_grad():
            for root, weight in zip(roots, weights, strict=False):
                self._add(self._true_value(root, weight))
        self._scaled_nodes.clear()

    def _true_value(self, root: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        value = root.detach()
        value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        if weight is not None:
            value = value * weight.detach().to(value.dtype)
        if value.is_complex():
            value = value.real
        value = value.sum() if value.dim() else value
        scale = self._scale_of(root)
        if scale is not None:
            value = value / scale.to(value.device)
        return value.to(torch.float64 if value.device.type != "mps" else torch.float32)

    def _scale_of(self, root: torch.Tensor) -> torch.Tensor | None:
        if not self._scaled_nodes or not reaches(root, set(self._scaled_nodes)):
            return None
        return self._scale

    def _add(self, value: torch.Tensor) -> None:
        if self._sum is None:
            self._sum = value.clone()
        else:
            self._sum = self._sum + value.to(self._sum.device)

    @property
    def loss(self) -> torch.Tensor | None:
        """The sum so far, a 0-d tensor on the loss's device; None if there was no backward call."""
        return self._sum

    @property
    def scale(self) -> torch.Tensor | None:
        """The loss scale in force at the last backward call since the last step; None without a scaler."""
        return self._scale

    def restart(self) -> None:
        """Begin anew: an optimizer has stepped, or a closure is about to be evaluated again."""
        self._sum = None
        self._scale = None
        self.count = 0


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [each for part in value for each in _tensors(part)] if isinstance(value, (list, tuple)) else []
