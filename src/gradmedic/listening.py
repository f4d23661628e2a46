"""What there is to be heard of a training step: the calls that `torch_hooks` makes, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

StepArguments = tuple[Any, dict[str, Any]]


@dataclass(slots=True)
class ClipCall:
    """One call of a torch clip function: by norm (`max_norm`, `total_norm`) or by value (`clip_value`)."""

    api: str
    parameters: list[torch.Tensor]
    max_norm: float | None = None
    total_norm: torch.Tensor | None = None
    clip_value: float | None = None
    notes: dict[int, Any] = field(default_factory=dict)


class Listener:
    """What the hooks call; each method may be overridden. An exception reaches `failed`, never the host."""

    def before_backward(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """An outermost backward pass begins."""

    def after_backward(self, finished: bool) -> None:
        """An outermost backward pass has ended; `finished` is False when it raised."""

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> StepArguments | None:
        """An optimizer is about to step; arguments that are returned replace those of the call."""
        return None

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""

    def before_clip_norm(self, parameters: Sequence[torch.Tensor]) -> None:
        """A clip function is about to measure the gradients that it will change."""

    def before_clip(self, call: ClipCall) -> None:
        """A torch clip function is about to change gradients."""

    def after_clip(self, call: ClipCall) -> None:
        """A torch clip function has changed gradients."""

    def scaled(self, scaler: Any, outputs: Any, given: Any) -> None:
        """A GradScaler has multiplied what it was given by its scale."""

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler has divided an optimizer's gradients by its scale."""

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """`GradScaler.step` begins."""

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, finished: bool) -> None:
        """`GradScaler.step` has ended, whether it stepped the optimizer or withheld the step."""

    def after_scaler_update(self, scaler: Any, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        """`GradScaler.update` has ended; what scale and growth tracker were before."""

    def gradients_put_aside(self) -> None:
        """A trainer has added the gradients to its own sum, and will erase them: they belong to the step to come."""

    def loss_is(self, loss: torch.Tensor) -> None:
        """A trainer says what the loss of the step under way is."""

    def failed(self, part: str, error: Exception) -> None:
        """A callback has raised; called in its stead. May raise in strict mode."""
        raise error
