"""Clipping by norm: of all gradients together, of each tensor, or of each output unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from gradmedic.clip.base import BaseTransform, Decision, Scope
from gradmedic.clip.operations import Scale, UnitScale
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State, by_tensor
from gradmedic.clip.summary import GradientSummary, joint_norm
from gradmedic.clip.thresholds.base import Constant, as_threshold, check_positive, check_threshold, limit_of
from gradmedic.clip.thresholds.param_ratio import ParamRatio
from gradmedic.errors import InputError

#: torch.nn.utils.clip_grad_norm_ divides by the norm plus this; kept, so that both give the same weights.
EPSILON = 1e-6
#: How far below its limit, relatively, a norm counts as at it: what another clip has brought to the same limit lies an
#: ulp above or below, and the next clip is to do the same on every backend.
AT_LIMIT = 1e-12

Per = Literal["model", "tensor", "unit"]


@dataclass(frozen=True)
class NormClip(BaseTransform):
    """Scale gradients so that a norm does not exceed a threshold; see `norm`."""

    threshold: Any
    per: Per = "model"
    norm_type: float = 2.0
    eps: float = EPSILON

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """The joint norm needs all gradients at once."""
        return "model" if self.per == "model" else "tensor"

    def init(self, spec: Spec) -> State:
        """Return the threshold's first state."""
        if self.per == "tensor":
            return State(parts={"threshold": by_tensor(self.threshold.begin((len(spec),), spec.device))})
        return State(parts={"threshold": self.threshold.begin((), spec.device)})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step; what is not finite is left alone, NaN never multiplies anything."""
        if self.per == "unit":
            return self._by_unit(summary), state
        if self.per == "model":
            signal, sick = summary.joint(self.norm_type)
            valid = sick == 0
        else:
            signal, sick = summary.norms(self.norm_type), summary.nonfinite
            valid = (sick == 0) if summary.seen is None else (sick == 0) & summary.seen
        held = state.parts["threshold"]
        limit = limit_of(self.threshold, signal, held, summary)
        factor = scale_to(limit, signal, sick, self.eps)
        clipped = (signal > limit) & (sick == 0)
        after = self.threshold.observe(signal, torch.minimum(signal, limit), valid, held)
        decision = Decision((Scale(factor),), clipped.any(), limit if not limit.dim() else None)
        return decision, State(parts={"threshold": after})

    def _by_unit(self, summary: GradientSummary) -> Decision:
        if summary.gradients is None:
            raise ValueError("clipping by unit needs the gradients, and they are not at hand")
        axes = {at: summary.spec.tensors[at].unit_dim for at in summary.gradients.positions}
        units = summary.gradients.unit_norms(axes, self.norm_type)
        limits = self._unit_limits(summary, axes, units)
        factors: dict[int, torch.Tensor] = {}
        norms: dict[int, torch.Tensor] = {}
        clipped = torch.zeros((), dtype=torch.bool, device=summary.norm.device)
        for at, measured in units.items():
            finite = torch.isfinite(measured)
            over = finite & (measured > limits[at])
            factor = torch.where(over, limits[at] / (measured + self.eps), torch.ones_like(measured))
            factors[at] = summary.gradients.units_here(factor, at, axes[at])
            kept = torch.where(finite, measured * factor, torch.zeros_like(measured)).reshape(-1)
            norms[at] = joint_norm(kept, self.norm_type).to(summary.norm.device)
            clipped = clipped | over.any().to(clipped.device)
        after = norms if self.norm_type == 2.0 else {}
        return Decision((UnitScale(factors, axes, after),), clipped)

    def _unit_limits(
        self, summary: GradientSummary, axes: Mapping[int, int | None], units: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        if isinstance(self.threshold, ParamRatio):
            assert summary.gradients is not None
            weights = summary.gradients.weight_unit_norms(axes, self.norm_type)
            return {at: self.threshold.of_weights(norm) for at, norm in weights.items()}
        return {at: limit_of(self.threshold, norm, State(), summary) for at, norm in units.items()}


def scale_to(
    limit: torch.Tensor | float, norm: torch.Tensor, nonfinite: torch.Tensor, eps: float = EPSILON
) -> torch.Tensor:
    """Return the factor that brings a norm to its limit, elementwise.

    Args:
        limit: largest norm allowed, > 0.
        norm: norm of the finite elements, float64.
        nonfinite: number of the others.
        eps: added to the norm in the division.

    Returns:
        float64, no host sync: exactly 1 below the limit (by more than `AT_LIMIT`) and where anything is not finite,
        torch's formula at and above it.
    """
    reached = (norm >= limit * (1.0 - AT_LIMIT)) & (nonfinite == 0)
    return torch.where(reached, limit / (norm + eps), torch.ones_like(norm)).clamp(max=1.0)


def norm(threshold: Any, *, per: Per = "model", norm_type: float = 2.0) -> NormClip:
    """Clip gradients by their norm (Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063, algorithm 1).

    Below the threshold gradients stay bit-identical; above it they are multiplied by `threshold / (norm + 1e-6)`,
    which is torch's formula. Gradients of 1e25 in fp32 are clipped, not zeroed; where an element is NaN or infinite
    nothing is changed, so a sick tensor does not damage the others.

    Args:
        threshold: largest norm allowed: a number > 0 (`math.inf` measures only), a function step -> number, or a
            threshold: `percentile`, `median`, `zscore`, `ema_ratio`, `param_ratio`, `warmup`.
        per: "model": the joint norm of all gradients, which keeps their direction; "tensor": each by itself; "unit":
            each output unit (row of a linear map, filter of a convolution) by itself.
        norm_type: the p of the norm, > 0; `math.inf` for the largest magnitude.

    Returns:
        A transform for `gm.watch(..., transform=...)`, `gm.Clipper` and `gradmedic run --clip`.

    Raises:
        InputError: for a threshold that is negative, zero or NaN, an unknown `per`, or a threshold with a history by
            unit.

    Example:
        >>> norm(1.0).threshold.number
        1.0
    """
    if per not in get_args(Per):
        raise InputError(f"per: expected one of {', '.join(get_args(Per))}, got {per!r}")
    chosen = as_threshold(threshold)
    if per == "unit" and chosen.begin((), torch.device("cpu")) != State():
        raise InputError(
            f"norm: {threshold!r} remembers norms, which would take a history for every output unit; use it with "
            'per="tensor", or a number or param_ratio with per="unit"'
        )
    hint = "; write math.inf for the largest magnitude" if str(norm_type) == "inf" else ""
    return NormClip(chosen, per, check_positive(norm_type, "norm_type", hint))


__all__ = ["EPSILON", "Constant", "NormClip", "check_threshold", "norm", "scale_to"]
