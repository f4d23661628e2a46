"""Independent float64 clipping, and loops that clip in different ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn


def dense64(gradient: torch.Tensor) -> np.ndarray:
    dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64).numpy().copy()


def p_norm(arrays: Sequence[np.ndarray], power: float) -> float:
    """Joint p-norm of the finite elements, scaled against overflow."""
    flat = np.concatenate([np.abs(array).ravel() for array in arrays] or [np.zeros(0)])
    flat = flat[np.isfinite(flat)]
    largest = flat.max(initial=0.0)
    if largest == 0.0 or math.isinf(power):
        return float(largest)
    return float(largest * ((flat / largest) ** power).sum() ** (1 / power))


def clipped(arrays: Sequence[np.ndarray], max_norm: float, power: float = 2.0) -> list[np.ndarray]:
    """torch's formula, in float64."""
    factor = min(1.0, max_norm / (p_norm(arrays, power) + 1e-6))
    return [array * factor for array in arrays]


def parameters(gradients: Sequence[torch.Tensor | None]) -> list[nn.Parameter]:
    held = []
    for gradient in gradients:
        like = torch.zeros(2) if gradient is None else gradient
        parameter = nn.Parameter(torch.zeros(like.shape, dtype=like.dtype))
        parameter.grad = None if gradient is None else gradient.clone()
        held.append(parameter)
    return held


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(dtype)


def batch(seed: int, rows: int = 8, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=draw).to(dtype), 3 * torch.randn(rows, 1, generator=draw).to(dtype)


def weights(model: nn.Module) -> list[np.ndarray]:
    return [dense64(p) for p in model.parameters()]


def assert_close(one: Sequence[np.ndarray], other: Sequence[np.ndarray], rtol: float = 1e-5, **options: Any) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, **{"atol": 1e-7, **options})
