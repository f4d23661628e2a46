"""A loss call that was seen in a graph, as a function that computes it again from the model's output.

Nothing is guessed: a recipe counts only when it gives, for the output that was there, the very loss that was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from gradmedic.probes.leaves import tensor_leaves
from gradmedic.probes.loss_graph import LossCall
from gradmedic.probes.node_values import operation, saved

#: Difference, as a part of the loss, up to which two computations are the same.
EQUAL = 1e-3
_MAX_LEAVES = 4

_Loss = Callable[..., torch.Tensor]
_Arrange = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_LOSSES: dict[str, _Loss] = {
    "cross_entropy": F.cross_entropy,
    "nll": F.nll_loss,
    "bce": F.binary_cross_entropy,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
}


def _as_rows(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return output.reshape(-1, output.shape[-1]), target.reshape(-1)


def _classes_second(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return output.movedim(1, -1).reshape(-1, output.shape[1]), target.reshape(-1)


def _without_last(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return output[:, :-1].reshape(-1, output.shape[-1]), target.reshape(-1)


def _like_target(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return output.reshape(target.shape), target


_OF_CLASSES: tuple[_Arrange, ...] = (_as_rows, _classes_second, _without_last)
_OF_NUMBERS: tuple[_Arrange, ...] = (_like_target,)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a loss follows from a model's output.

    Attributes:
        leaf: which tensor of the output.
        kind: the loss, see `facts.LossFact`.
        reduction: "mean" or "sum".
        arrange: puts output and target into shape.
        sign: -1 where the negative was minimised.
        shape: of the target, samples first; None where that is not known.
    """

    leaf: int
    kind: str
    reduction: str
    arrange: _Arrange
    sign: int = 1
    shape: tuple[int, ...] | None = None

    def loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """Return the loss (not its negative) of an output, whatever structure that has."""
        tensor = list(tensor_leaves(output))[self.leaf]
        given, wanted = self.arrange(tensor, target)
        return _LOSSES[self.kind](given, wanted, reduction=self.reduction)


@torch.no_grad()
def recipe_of(call: LossCall, output: Any, root: torch.Tensor, samples: int) -> tuple[Recipe, torch.Tensor] | None:
    """Find out how the root follows from the model's output.

    Args:
        call: the only loss call behind the root.
        output: what the model has put out.
        root: the tensor on which `backward` is about to be called.
        samples: of the batch.

    Returns:
        The recipe and the targets, [samples, ...]; None where none of the usual ways gives this root. Reads numbers
        back from the device.
    """
    target = target_of(call)
    if target is None or call.kind not in _LOSSES or root.numel() != 1 or target.numel() % max(samples, 1):
        return None
    shaped = target
    if call.kind in ("cross_entropy", "nll"):  # torch gives targets of sequences another dimension
        shaped = target.reshape(samples) if target.numel() == samples else target.reshape(samples, -1)
    elif target.dim() and target.shape[0] != samples:
        shaped = target.reshape(samples, -1)
    value = float(root.detach())
    for recipe in _candidates(call, output):
        try:
            made = float(recipe.loss(output, shaped))
        except (RuntimeError, ValueError, IndexError):  # shapes that do not go together
            continue
        for sign in (1, -1):
            if abs(value - sign * made) <= EQUAL * max(abs(made), 1e-12):
                found = Recipe(recipe.leaf, recipe.kind, recipe.reduction, recipe.arrange, sign, tuple(shaped.shape))
                return found, shaped
    return None


def target_of(call: LossCall) -> torch.Tensor | None:
    """Return the targets of a loss call; None where its node has not saved them."""
    if operation(call.node) == "LogSoftmax":
        return saved(call.user, "index", near_loss=True) if operation(call.user) == "Gather" else None
    return saved(call.node, "target", near_loss=True)


def _candidates(call: LossCall, output: Any) -> Iterator[Recipe]:
    arranges = _OF_CLASSES if call.kind in ("cross_entropy", "nll") else _OF_NUMBERS
    reductions = ("sum", "mean") if call.reduction == "sum" else ("mean", "sum")
    for leaf, tensor in enumerate(tensor_leaves(output)):
        if leaf == _MAX_LEAVES:
            return
        if not tensor.is_floating_point() or tensor.dim() == 0:
            continue
        for reduction in reductions:
            for arrange in arranges:
                yield Recipe(leaf, call.kind, reduction, arrange)
