"""Changing gradients that lie on a device by its kernels: translates operations into what they take.

Every function returns the positions, among those it was given, of the gradients that are left to torch's operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gradmedic.clip.operations import Limit, MomentLimit, UnitScale
from gradmedic.stats.device import kernels
from gradmedic.stats.triton_backend import readable

Gradients = Sequence[torch.Tensor | None]


def scale(gradients: Sequence[torch.Tensor], factors: torch.Tensor) -> list[int]:
    """Multiply each of N gradients by its factor, float64 [N]; positions are those in this list."""
    if not gradients or factors.device != gradients[0].device or min(g.element_size() for g in gradients) < 2:
        return list(range(len(gradients)))
    return kernels.treat(list(gradients), lambda treatment, done: treatment.scale(list(gradients), factors, done))


def by_element(
    gradients: Gradients,
    operation: UnitScale | Limit | MomentLimit,
    positions: Sequence[int],
    loss_scale: torch.Tensor | None,
) -> list[int]:
    """Scale units or clamp elements of the gradients at these positions; returns those that are left."""
    chosen = [at for at in positions if _suits(gradients[at], operation, at, loss_scale)]
    tensors = [tensor for at in chosen if (tensor := gradients[at]) is not None]
    if not tensors:
        return list(positions)
    if isinstance(operation, UnitScale):
        left = _scale_units(tensors, operation, chosen)
    elif isinstance(operation, Limit):
        limits = [operation.limits[at] for at in chosen]
        left = kernels.treat(
            tensors, lambda treatment, done: treatment.limit(tensors, limits, done, loss_scale=loss_scale)
        )
    else:
        moments, thetas = [operation.moments[at] for at in chosen], [operation.theta] * len(chosen)
        left = kernels.treat(
            tensors,
            lambda treatment, done: treatment.limit(tensors, thetas, done, loss_scale=loss_scale, moments=moments),
        )
    undone = {chosen[at] for at in left}.union(set(positions).difference(chosen))
    return [at for at in positions if at in undone]


def _scale_units(tensors: list[torch.Tensor], operation: UnitScale, chosen: Sequence[int]) -> list[int]:
    factors = [operation.factors[at].double() for at in chosen]
    inners = [_inner(tensor, operation, at) or 1 for tensor, at in zip(tensors, chosen, strict=True)]
    return kernels.treat(
        tensors, lambda treatment, done: treatment.scale_units(tensors, factors, inners, done)
    )  # fmt: skip


def _suits(
    gradient: torch.Tensor | None,
    operation: UnitScale | Limit | MomentLimit,
    at: int,
    loss_scale: torch.Tensor | None,
) -> bool:
    """Whether a kernel can do the operation on this gradient with all that it takes lying beside it."""
    if gradient is None or not readable(gradient) or gradient.element_size() < 2:
        return False
    if isinstance(operation, UnitScale):
        return operation.factors[at].device == gradient.device and _inner(gradient, operation, at) is not None
    if loss_scale is not None and loss_scale.device != gradient.device:
        return False
    if isinstance(operation, Limit):
        return True
    moment, first = operation.moments[at], next(iter(operation.moments.values()))
    same_place = moment.device == gradient.device and moment.shape == gradient.shape
    return same_place and readable(moment) and moment.dtype == first.dtype


def _inner(gradient: torch.Tensor, operation: UnitScale, at: int) -> int | None:
    """Return how many elements of one unit follow each other in memory, >= 1; None for a layout that is not units'."""
    count, axis = operation.factors[at].numel(), operation.dims[at]
    if count == 1:
        return max(1, gradient.numel())
    if axis is not None and gradient.dim() > 1:
        return max(1, math.prod(gradient.shape[axis + 1 :])) if gradient.shape[axis] == count else None
    return 1 if gradient.dim() == 1 and gradient.numel() == count else None
