"""Small models, and the float64 references that the core's numbers are held to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

import gradmedic as gm


def watch(model: Any, optimizer: Any = None, **options: Any) -> gm.Monitor:
    return gm.watch(model, optimizer, strict=True, **options)


def net(seed: int = 0, width: int = 5, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).to(dtype)


def batch(seed: int, rows: int = 8, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=draw).to(dtype), torch.randn(rows, 1, generator=draw).to(dtype)


def as_float64(gradient: torch.Tensor) -> np.ndarray:
    dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    wide = dense.to(torch.complex128 if dense.is_complex() else torch.float64)
    return np.abs(wide.numpy()).ravel() if dense.is_complex() else wide.numpy().ravel()


def norm(gradients: Iterable[torch.Tensor | None]) -> float:
    """Joint L2 norm in float64, scaled so that squares do not overflow."""
    values = [as_float64(g) for g in gradients if g is not None]
    flat = np.concatenate(values) if values else np.zeros(0)
    largest = np.abs(flat).max(initial=0.0)
    return 0.0 if largest == 0 else float(largest * math.sqrt(np.square(flat / largest).sum()))


def grad_norm(model: nn.Module) -> float:
    return norm(p.grad for p in model.parameters())


def statistics(gradient: torch.Tensor) -> dict[str, float]:
    """Every statistic of one gradient; moments over the finite elements."""
    flat = as_float64(gradient)
    finite = flat[np.isfinite(flat)]
    magnitude = np.abs(finite)
    moments = dict.fromkeys(("norm", "max_abs", "min_abs", "mean", "std", "mean_abs"), 0.0)
    if finite.size:
        moments = {
            "norm": norm([torch.from_numpy(finite)]),
            "max_abs": magnitude.max(),
            "min_abs": magnitude.min(),
            "mean": finite.mean(),
            "std": finite.std(),
            "mean_abs": magnitude.mean(),
        }
    return {
        **moments,
        "numel": flat.size,
        "zero_count": int((flat == 0).sum()),
        "nan_count": int(np.isnan(flat).sum()),
        "inf_count": int(np.isinf(flat).sum()),
    }


def set_gradients(model: nn.Module, make: Any) -> None:
    """Run a backward pass whose gradients are exactly make(parameter)."""
    for parameter in model.parameters():
        parameter.grad = None
    wanted = [(p, make(p)) for p in model.parameters() if p.requires_grad]
    roots = [p.expand_as(p) for p, _ in wanted]
    torch.autograd.backward(roots, [g for _, g in wanted])


def frames(monitor: gm.Monitor) -> list[gm.Frame]:
    return list(monitor.run.frames())


def events(monitor: gm.Monitor, kind: str) -> list[dict[str, Any]]:
    return [event for event in monitor.run.events if event["kind"] == kind]


def codes(monitor: gm.Monitor) -> list[str]:
    return [finding.code for finding in monitor.diagnose()]
