"""Gradients of parameters that may lie on several ranks: who takes part in a reading, and with what.

An expert that no token of this rank has reached still takes part, with nothing: the others would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradmedic.stats.mesh_layout import added_up, any_distributed, any_partial, is_distributed, local_of, locals_of


def readable(parameter: Tensor) -> bool:
    """Whether a parameter takes part in a reading: it has a gradient, or another rank may have one for it."""
    gradient = parameter.grad
    if gradient is None:
        return is_distributed(parameter) and not parameter.is_meta
    return not gradient.is_meta


def readable_among(parameters: Sequence[Tensor]) -> list[int]:
    """Return the positions of those parameters that take part in a reading; see `readable`."""
    pairs = zip(parameters, gradients_of(parameters), strict=True)
    with torch._C.DisableTorchFunctionSubclass():
        return [
            at for at, (each, found) in enumerate(pairs) if (readable(each) if found is None else not found.is_meta)
        ]


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor | None]:
    """Return the gradient of each parameter, None without one."""
    # For a subclass, and a DTensor is one, torch looks at each attribute for an override of it, which takes longer than
    # the attribute; a gradient itself is never made anew by one.
    with torch._C.DisableTorchFunctionSubclass():
        return [parameter.grad for parameter in parameters]


def on_meta(tensors: Iterable[Tensor]) -> list[int]:
    """Return the positions of the tensors that have no values."""
    with torch._C.DisableTorchFunctionSubclass():
        return [at for at, tensor in enumerate(tensors) if tensor.is_meta]


def local_gradients(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the parts of the parameters' gradients that lie here, sharing their memory; None where there is none."""
    gradients = gradients_of(parameters)
    present = [gradient for gradient in gradients if gradient is not None]
    if len(present) == len(gradients):
        return [*locals_of(present)]
    return [None if gradient is None else local_of(gradient) for gradient in gradients]


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
    gradients = gradients_of(parameters)
    if any_distributed(parameters) or any_distributed(gradients):
        return [gradient_or_zeros(parameter) for parameter in parameters]
    return [None if gradient is None or gradient.is_meta else gradient for gradient in gradients]


def add_up_gradients(parameters: Sequence[Tensor]) -> None:
    """Exchange gradients whose values have yet to be added up for their sums: who changes single elements needs them.

    One collective for each; all ranks must do it at the same time.
    """
    gradients = gradients_of(parameters)
    if not any_partial(gradients):
        return
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and any_partial([gradient]):
            parameter.grad = added_up(gradient)


def parts_to_measure(parameters: Sequence[Tensor], *, together: bool = True) -> tuple[list[Tensor], list[bool]]:
    """Return (what of readable parameters' gradients is measured here, for which of them there is a gradient here).

    Args:
        parameters: the parameters; where there is no gradient of one here, an empty tensor is measured.
        together: whether all ranks do this, so that partial gradients can be added up.
    """
    found = gradients_of(parameters)
    present = [gradient is not None for gradient in found]
    gradients = [
        local_of(parameter.detach()).new_empty(0) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]
    if together and any_partial(gradients):
        gradients = [added_up(gradient) for gradient in gradients]
    return locals_of(gradients), present


def has_memory(tensor: Tensor) -> bool:
    """Whether a strided tensor with elements has memory for them.

    `fully_shard` gathers a weight for the forward pass and takes the memory away again, while the graph still holds the
    tensor: to read it then ends the process.
    """
    try:
        return tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):  # a wrapper without storage of its own
        return False
