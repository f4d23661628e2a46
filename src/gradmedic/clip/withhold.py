"""A true skip: the step is called, and weights, moments, step counters and decay stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Undo = Callable[[], None]


def honours_found_inf(optimizer: Any) -> bool:
    """Whether an optimizer skips by itself when its `found_inf` is set, and has its state already.

    Fused optimizers do. On a step that creates state they leave some of it uninitialised (SGD's momentum buffer), which
    ruins the weights one step later: there the gradients have to be dropped instead.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False) or not getattr(optimizer, "state", None):
        return False
    held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return all(p in optimizer.state and optimizer.state[p] for p in held)


def skip_on_device(optimizer: Any, skip: torch.Tensor) -> Undo:
    """Let a fused optimizer decide on the device: it makes no step where the flag is set. No host sync.

    Args:
        optimizer: one that honours `found_inf`.
        skip: 0-d bool.

    Returns:
        A function that puts `found_inf` back, to be called after the step.
    """
    missing = object()
    former = getattr(optimizer, "found_inf", missing)
    flag = skip.to(torch.float32)
    # The kernels compare with exactly 1; a scaler's flag, summed over devices, may be 2.
    optimizer.found_inf = flag if not isinstance(former, torch.Tensor) else torch.maximum(flag, former.clamp(max=1))

    def undo() -> None:
        if former is missing:
            if hasattr(optimizer, "found_inf"):
                del optimizer.found_inf
        else:
            optimizer.found_inf = former

    return undo


def drop_gradients(parameters: Sequence[torch.Tensor]) -> Undo:
    """Take the gradients away, so that any optimizer passes the parameters over.

    Returns:
        A function that puts them back, to be called after the step.
    """
    held = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    for parameter, _ in held:
        parameter.grad = None

    def undo() -> None:
        for parameter, gradient in held:
            if parameter.grad is None:
                parameter.grad = gradient

    return undo
