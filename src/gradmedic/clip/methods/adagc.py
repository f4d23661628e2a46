"""AdaGC: each tensor is clipped relative to a running mean of its own clipped norms."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradmedic.clip.base import BaseTransform, Decision
from gradmedic.clip.operations import Scale
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_count, check_positive, check_share


@dataclass(frozen=True)
class AdaGC(BaseTransform):
    """Clip each tensor to a multiple of its own usual norm; see `adagc`."""

    ratio: float
    beta: float
    warmup: int
    absolute: float

    def init(self, spec: Spec) -> State:
        """Return reference norms that are not known yet (infinite)."""
        unknown = torch.full((len(spec),), torch.inf, dtype=torch.float64, device=spec.device)
        return State({"count": torch.zeros((), dtype=torch.int64, device=spec.device)}, {"gamma": unknown})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step."""
        norm, gamma, count = summary.norm, state.by_tensor["gamma"], state.shared["count"]
        well = summary.nonfinite == 0
        warm = count < self.warmup
        total = summary.total
        joint = torch.where((total > self.absolute) & summary.finite, self.absolute / total, torch.ones_like(total))
        known = torch.isfinite(gamma)
        over = well & known & (norm > self.ratio * gamma)
        own = torch.where(over, self.ratio * gamma / norm, torch.ones_like(norm))
        # A tensor whose usual norm is not known (an expert that was never used) falls back to the joint clip: a
        # reference of zero would silence it for good.
        factor = torch.where(warm | ~known, joint, own)
        factor = torch.where(well, factor, torch.ones_like(factor))
        kept = norm * factor
        counts = well & (norm > 0)
        lowest = torch.minimum(gamma, kept)
        mixed = torch.where(known, self.beta * gamma + (1 - self.beta) * kept, kept)
        fresh = torch.where(counts, torch.where(warm, lowest, mixed), gamma)
        decision = Decision((Scale(factor),), (factor < 1).any())
        return decision, State({"count": count + summary.finite}, {"gamma": fresh})


def adagc(ratio: float = 1.05, beta: float = 0.98, warmup: int = 100, *, absolute: float = 1.0) -> AdaGC:
    """Clip each tensor to `ratio` times a running mean of its own clipped norms (AdaGC, arXiv:2502.11034, algorithm 1).

    During the warm-up all gradients are clipped jointly to `absolute`, and each tensor's reference is the least norm
    that was left of it. Since the least norm is noisy, the first steps after it are clipped often: references recover
    by 0.1 % a step. Unlike the public code, the joint norm is the norm (there its square), a NaN enters no reference,
    and a tensor without a gradient so far has no reference of zero, which would silence it for good.

    Args:
        ratio: multiple of the reference, > 0.
        beta: decay of the reference, between 0 and 1.
        warmup: steps of joint clipping.
        absolute: their threshold, > 0.

    Returns:
        A transform.

    Example:
        >>> adagc().warmup
        100
    """
    check_count(warmup, "warmup")
    return AdaGC(
        check_positive(ratio, "ratio"), check_share(beta, "beta"), warmup, check_positive(absolute, "absolute")
    )
