"""Gradients of parameters that may lie on several ranks: who takes part in a reading, and with what.

An expert that no token of this rank has reached still takes part, with nothing: the others would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmedic.stats.mesh_layout import added_up, any_distributed, is_distributed, local_of


def readable(parameter: Tensor) -> bool:
    """Whether a parameter takes part in a reading: it has a gradient, or another rank may have one for it."""
    gradient = parameter.grad
    if gradient is None:
        return is_distributed(parameter) and not parameter.is_meta
    return not gradient.is_meta


def readable_among(parameters: Sequence[Tensor]) -> list[int]:
    """Return the positions of those parameters that take part in a reading; see `readable`."""
    if any_distributed(parameters):
        return [at for at, parameter in enumerate(parameters) if readable(parameter)]
    return [at for at, each in enumerate(parameters) if (found := each.grad) is not None and not found.is_meta]


def local_gradients(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the parts of the parameters' gradients that lie here, sharing their memory; None where there is none."""
    if any_distributed(parameters):
        return [local_gradient(parameter) for parameter in parameters]
    return [parameter.grad for parameter in parameters]


def local_gradient(parameter: Tensor) -> Tensor | None:
    """Return the part of a parameter's gradient that lies here, sharing its memory; None where there is none."""
    gradient = parameter.grad
    return None if gradient is None else local_of(gradient)


def visible_gradient(parameter: Tensor) -> Tensor | None:
    """Return a parameter's gradient, or the part of it that lies here; None where there is none or no values are."""
    gradient = local_gradient(parameter)
    return None if gradient is None or gradient.is_meta else gradient


def gradient_or_zeros(parameter: Tensor) -> Tensor | None:
    """Return a parameter's visible gradient; zeros, where it lies on several ranks and only others may have one."""
    gradient = visible_gradient(parameter)
    if gradient is None and is_distributed(parameter) and not parameter.is_meta:
        return torch.zeros_like(local_of(parameter.detach()))
    return gradient


def gradients_or_zeros(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return `gradient_or_zeros` of each parameter."""
    if any_distributed(parameters):
        return [gradient_or_zeros(parameter) for parameter in parameters]
    return [None if (found := parameter.grad) is None or found.is_meta else found for parameter in parameters]


def add_up_gradients(parameters: Iterable[Tensor]) -> None:
    """Exchange gradients whose values have yet to be added up for their sums: who changes single elements needs them.

    One collective for each; all ranks must do it at the same time.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and is_distributed(gradient) and _is_partial(gradient):
            parameter.grad = added_up(gradient)


def _is_partial(gradient: Any) -> bool:
    for placement in gradient.placements:  # noqa: SIM110 - a generator takes as long as the answer, for each tensor
        if placement.is_partial():
            return True
    return False


def part_to_measure(parameter: Tensor, *, together: bool = True) -> Tensor:
    """Return what of a readable parameter's gradient is measured here; an empty tensor where nothing is.

    Args:
        parameter: the parameter.
        together: whether all ranks do this, so that partial gradients can be added up.
    """
    gradient = parameter.grad
    if gradient is None:
        return local_of(parameter.detach()).new_empty(0)
    if together and is_distributed(gradient) and _is_partial(gradient):
        gradient = added_up(gradient)
    return local_of(gradient)


def has_memory(tensor: Tensor) -> bool:
    """Whether a strided tensor with elements has memory for them.

    `fully_shard` gathers a weight for the forward pass and takes the memory away again, while the graph still holds the
    tensor: to read it then ends the process.
    """
    try:
        return tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):  # a wrapper without storage of its own
        return False
