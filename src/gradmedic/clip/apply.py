"""The one place where gradients are changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch


@torch.no_grad()
def scale_gradients(gradients: Sequence[torch.Tensor], scale: torch.Tensor) -> None:
    """Multiply gradients in place by one factor.

    Args:
        gradients: dense or sparse, of any dtypes and devices; each tensor once.
        scale: 0-d float64. On the CPU a factor of exactly 1 saves the pass over memory; on a device the multiplication
            by 1 is made (it changes no bit), since looking would cost a synchronisation.
    """
    if scale.device.type == "cpu":
        factor = float(scale)
        if factor == 1.0:
            return
        _multiply(gradients, factor)
        return
    _multiply(gradients, scale)


def _multiply(gradients: Sequence[torch.Tensor], factor: float | torch.Tensor) -> None:
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        values = gradient._values() if gradient.is_sparse else gradient
        groups.setdefault((values.device, values.dtype), []).append(values)
    for (device, dtype), values_list in groups.items():
        here = factor
        if isinstance(factor, torch.Tensor):
            real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
            here = factor.to(device, real, non_blocking=True)
        elif dtype in (torch.float16, torch.bfloat16):
            # A Python number is rounded to the tensors' type first, an error of up to 0.4 % in bf16; a tensor is not.
            here = torch.tensor(factor, dtype=torch.float32)
        torch._foreach_mul_(values_list, here)
