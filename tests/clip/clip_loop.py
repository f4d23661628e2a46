"""Transforms driven by hand: the loop that a monitor makes of them, without a monitor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from clip_reference import dense64, p_norm
from torch import nn

from gradmedic.clip.access import Gradients
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.base import Decision, settle
from gradmedic.clip.spec import Spec, describe_tensors
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary

Gradient = torch.Tensor | None


def drive(transform: Any, norms: Sequence[Any], losses: Sequence[float] | None = None) -> list[Any]:
    """Factors (one tensor: a number; several: a list) step by step; None for a skipped step."""
    return [outcome.factor for outcome in steps(transform, norms, losses)]


@dataclass
class Step:
    decision: Decision
    state: State
    skipped: bool

    @property
    def factor(self) -> Any:
        if self.skipped:
            return None
        scale = self.decision.scale.tolist()
        return scale[0] if isinstance(scale, list) and len(scale) == 1 else scale

    @property
    def threshold(self) -> float:
        return float(self.decision.threshold)


def steps(
    transform: Any,
    norms: Sequence[Any],
    losses: Sequence[float] | None = None,
    state: State | None = None,
    first: int = 0,
) -> list[Step]:
    """Feed norms (a number, or one for each tensor) into a transform, as steps `first`, `first + 1`, …"""
    rows = [np.atleast_1d(row) for row in norms]
    if state is None:
        state = transform.init(Spec.of_names([str(at) for at in range(len(rows[0]))]))
    found = []
    for at, row in enumerate(rows):
        loss = None if losses is None else losses[at]
        summary = GradientSummary.of_norms(torch.tensor(row), step=first + at, loss=loss)
        decision, after = transform.update(summary, state)
        state = settle(transform, state, after, decision.skip)
        found.append(Step(decision, state, decision.skip is not None and bool(decision.skip)))
    return found


def summarise(
    spec: Spec,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[Gradient],
    *,
    step: int = 0,
    second_moment: Callable[[torch.Tensor], torch.Tensor | None] | None = None,
    loss_scale: float | None = None,
    measured: bool = True,
) -> GradientSummary:
    """What a transform may know of these gradients; numbers by numpy in float64, in true units."""
    arrays = [np.zeros(0) if g is None else dense64(g) / (loss_scale or 1.0) for g in gradients]
    finite = [np.abs(a[np.isfinite(a)]) for a in arrays]
    scale = None if loss_scale is None else torch.tensor(loss_scale)
    return GradientSummary(
        spec,
        torch.tensor([p_norm([a], 2.0) for a in finite], dtype=torch.float64),
        torch.tensor([int((~np.isfinite(a)).sum()) for a in arrays]),
        torch.tensor([g is not None for g in gradients]),
        step,
        None,
        torch.tensor([a.max(initial=0.0) for a in finite], dtype=torch.float64) if measured else None,
        torch.tensor([a.sum() for a in finite], dtype=torch.float64) if measured else None,
        Gradients(spec, parameters, gradients, second_moment, scale),
    )


class Treated:
    """Parameters under a transform; `step` decides about gradients and returns them as the optimizer would see them."""

    def __init__(
        self, transform: Any, parameters: Sequence[torch.Tensor] | nn.Module, *, on_host: bool = True, **options: Any
    ) -> None:
        if isinstance(parameters, nn.Module):
            names = [name for name, _ in parameters.named_parameters()]
            self.parameters = list(parameters.parameters())
            self.spec = describe_tensors(self.parameters, names, {"": parameters})
        else:
            self.parameters = list(parameters)
            self.spec = describe_tensors(self.parameters, [f"p{at}" for at in range(len(self.parameters))], {})
        self.transform = transform
        self.state = transform.init(self.spec)
        self.on_host = on_host
        self.options = options
        self.count = 0
        self.decision = Decision()

    def step(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        held = [None if g is None else g.clone() for g in gradients]
        scale = self.options.get("loss_scale")
        summary = summarise(self.spec, self.parameters, held, step=self.count, **self.options)
        self.decision, after = self.transform.update(summary, self.state)
        self.state = settle(self.transform, self.state, after, self.decision.skip)
        self.count += 1
        scaled = None if scale is None else torch.tensor(scale)
        apply_operations(held, self.decision.operations, on_host=self.on_host, loss_scale=scaled)
        return held


def treated(transform: Any, gradients: Sequence[Gradient], weights: Sequence[torch.Tensor] | None = None) -> list[Any]:
    """Gradients after one step under a transform, and what it decided."""
    like = [torch.zeros(2) if g is None else g.to_dense() if g.is_sparse else g for g in gradients]
    held = list(weights) if weights is not None else [torch.ones_like(g) for g in like]
    loop = Treated(transform, held)
    return loop.step(gradients)


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def same_state(one: State, other: State) -> bool:
    """Whether two states are equal bit for bit."""
    if set(one.shared) != set(other.shared) or set(one.by_tensor) != set(other.by_tensor):
        return False
    pairs = [(one.shared[k], other.shared[k]) for k in one.shared]
    pairs += [(one.by_tensor[k], other.by_tensor[k]) for k in one.by_tensor]
    if not all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs):
        return False
    return set(one.parts) == set(other.parts) and all(same_state(one.parts[k], other.parts[k]) for k in one.parts)


NAN, INF = math.nan, math.inf
GOLDEN = [1, 1.2, 0.8, 1, 10, 1, NAN, 1, INF, 2, 0]
