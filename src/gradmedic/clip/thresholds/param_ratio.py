"""A threshold in proportion to the norm of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import Stateless, check_positive


@dataclass(frozen=True, slots=True)
class ParamRatio(Stateless):
    """`ratio` times the norm of the weights, which counts as at least `eps`; see `param_ratio`."""

    ratio: float
    eps: float

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the threshold for the whole (shape ()) or for each tensor ([N]); one pass over the weights."""
        if summary.gradients is None:
            raise ValueError("param_ratio needs the weights, and they are not at hand")
        weights = summary.gradients.weight_norms()
        return self.of_weights(weights if signal.dim() else summary.joint_of(weights, 2.0))

    def of_weights(self, norms: torch.Tensor) -> torch.Tensor:
        """Return the thresholds that belong to weights of these norms."""
        return norms.clamp(min=self.eps) * self.ratio


def param_ratio(ratio: float = 0.01, eps: float = 1e-3) -> ParamRatio:
    """Clip at a share of the weights' own norm, as adaptive gradient clipping does (arXiv:2102.06171, equation 3).

    Args:
        ratio: largest gradient norm relative to the weights' norm, > 0.
        eps: least norm that weights count as, > 0: weights that begin at zero could never learn otherwise.

    Returns:
        A threshold for `norm`; with `per="unit"` by output unit.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> param_ratio(0.02).ratio
        0.02
    """
    return ParamRatio(check_positive(ratio, "ratio"), check_positive(eps, "eps"))
