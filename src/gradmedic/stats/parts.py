"""Gradients of parameters that may lie on several ranks: who takes part in a reading, and with what.

An expert that no token of this rank has reached still takes part, with nothing: the others would wait for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradmedic.stats.mesh_layout import added_up, is_distributed, local_of


def readable(parameter: Tensor) -> bool:
    """Whether a parameter takes part in a reading: it has a gradient, or another rank may have one for it."""
    gradient = parameter.grad
    if gradient is None:
        return is_distributed(parameter) and not parameter.is_meta
    return not gradient.is_meta


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


def part_to_measure(parameter: Tensor, *, together: bool = True) -> Tensor:
    """Return what of a readable parameter's gradient is measured here; an empty tensor where nothing is.

    Args:
        parameter: the parameter.
        together: whether all ranks do this, so that partial gradients can be added up.
    """
    gradient = parameter.grad
    if gradient is None:
        return local_of(parameter.detach()).new_empty(0)
    return local_of(added_up(gradient) if together else gradient)


def has_memory(tensor: Tensor) -> bool:
    """Whether a strided tensor with elements has memory for them.

    `fully_shard` gathers a weight for the forward pass and takes the memory away again, while the graph still holds the
    tensor: to read it then ends the process.
    """
    try:
        return tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):  # a wrapper without storage of its own
        return False
