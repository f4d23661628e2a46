"""What is probed: a loss that can be computed again, the batch that it is of, and who trains on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradmedic.errors import InputError
from gradmedic.probing.untouched import Held

LossOf = Callable[..., Any]


@dataclass(slots=True)
class Target:
    """A loss, its batch, and its model.

    Attributes:
        loss_of: called with the batch; returns the loss, a tensor of one element.
        batch: inputs, and last the targets; one tensor alone is both. Empty where `loss_of` takes nothing.
        models: the watched models.
        parameters: tensors that are trained and belong to no model.
        optimizers: who trains them, by name.
        clip: largest gradient norm that the script lets through; None without one.
        fresh_gradients: whether what stands in `.grad` is in true units.
    """

    loss_of: LossOf
    batch: tuple[torch.Tensor, ...] = ()
    models: Sequence[nn.Module] = ()
    parameters: Sequence[torch.Tensor] = ()
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    clip: float | None = None
    fresh_gradients: bool = True

    def loss(self, held: Held, batch: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Compute the loss with the random numbers that every probe begins with.

        Raises:
            InputError: it is not a tensor of one element.
        """
        held.rewind()
        with torch.enable_grad():
            loss = self.loss_of(*(self.batch if batch is None else batch))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.is_complex():
            came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise InputError(
                f"probe: expected a function that returns the loss, a tensor of one element, got {came}; for example "
                "monitor.probe(lambda x, y: criterion(model(x), y), x, y)"
            )
        return loss.reshape(())

    def value(self, held: Held, batch: Sequence[torch.Tensor] | None = None) -> float:
        """Compute the loss as a number; NaN where it is not finite."""
        number = float(self.loss(held, batch).detach())
        return number if math.isfinite(number) else math.nan

    def gradient(self, held: Held) -> list[torch.Tensor | None]:
        """Return the gradient of the loss by `held.parameters`; None where it does not depend on one."""
        loss = self.loss(held)
        if not loss.requires_grad:
            return [None] * len(held.parameters)
        found = torch.autograd.grad(loss, held.parameters, allow_unused=True)
        return [None if each is None else each.detach() for each in found]

    def rows(self) -> int:
        """Return how many samples the batch has; 0 where its tensors do not agree."""
        sizes = {each.shape[0] if each.dim() else 0 for each in self.batch}
        return sizes.pop() if len(sizes) == 1 else 0
