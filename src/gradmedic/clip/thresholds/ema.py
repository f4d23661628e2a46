"""A threshold in proportion to a running mean of past norms."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import Adaptive, check_count, check_positive, check_share


@dataclass(frozen=True)
class EmaRatio(Adaptive):
    """`ratio` times the running mean of norms after clipping; see `ema_ratio`."""

    ratio: float
    beta: float
    min_samples: int
    fallback: float

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """Return a mean of nothing."""
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        return State({"mean": zeros, "count": torch.zeros(size, dtype=torch.int64, device=device)})

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the threshold; the fallback until there are `min_samples` norms, none where all of them were 0."""
        held = state.shared or state.by_tensor
        ready = held["count"] >= self.min_samples
        found = torch.where(held["mean"] > 0, held["mean"] * self.ratio, torch.inf)
        return torch.where(ready, found, self.fallback)

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """Take the norm after clipping into the mean; norms of 0 (a branch that was not used) do not count."""
        held = state.shared or state.by_tensor
        counts = valid & (signal > 0)
        count = held["count"] + counts
        # A plain mean until 1 / count falls below 1 - beta: the first norm has no more weight than the others.
        weight = torch.maximum(1.0 / count.clamp(min=1).double(), torch.full_like(kept, 1.0 - self.beta))
        mean = torch.where(counts, held["mean"] + (kept - held["mean"]) * weight, held["mean"])
        fresh = {"mean": mean, "count": count}
        return State(by_tensor=fresh) if state.by_tensor else State(fresh)


def ema_ratio(ratio: float = 1.05, beta: float = 0.98, *, min_samples: int = 10, fallback: float = 1.0) -> EmaRatio:
    """Clip at a multiple of the running mean of the norms after clipping.

    Spikes hardly move it; growth is followed slowly, by at most a factor of 1 + (1 - beta)(ratio - 1) a step. OLMo's
    `max_grad_norm_ratio` and AdaGC (arXiv:2502.11034) after its warm-up are of this form.

    Args:
        ratio: multiple, > 0; 1.05 clips what is 5 % above the usual.
        beta: decay of the mean, between 0 and 1.
        min_samples: how many norms are needed before they count.
        fallback: the threshold until then, > 0; `math.inf` for none.

    Returns:
        A threshold for `norm`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> ema_ratio(2.0).ratio
        2.0
    """
    check_count(min_samples, "min_samples")
    return EmaRatio(check_positive(ratio, "ratio"), check_share(beta, "beta"), min_samples, fallback)
