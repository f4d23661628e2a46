"""Thresholds from the order of past norms: a percentile, or a multiple of the median."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import Adaptive, check_count, check_positive
from gradmedic.clip.thresholds.history import new_ring, push, quantile
from gradmedic.errors import InputError


@dataclass(frozen=True)
class Quantile(Adaptive):
    """`factor` times a quantile of the last norms before clipping; see `percentile` and `median`."""

    share: float
    factor: float
    window: int
    min_samples: int
    fallback: float
    include_current: bool

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """Return an empty history."""
        return State(new_ring(self.window, size, device))

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the threshold; the fallback until there are `min_samples` norms."""
        ring = state.shared or state.by_tensor
        also = signal if self.include_current else None
        found = quantile(ring, self.share, also) * self.factor
        known = ring["count"] + int(self.include_current)
        # 0 can only come from the current norm being 0; a threshold of 0 would erase what it is compared with.
        return torch.where(known >= self.min_samples, torch.where(found > 0, found, torch.inf), self.fallback)

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """Remember the norm before clipping: stored after it, the threshold could only ever fall.

        Norms of 0 (a branch that was not used, a masked loss) do not count: a history of them would erase all others.
        """
        return with_ring(state, push(state.shared or state.by_tensor, signal, valid & (signal > 0)))


def with_ring(state: State, ring: dict[str, torch.Tensor]) -> State:
    """Return a state with this ring where the old one was."""
    return State(by_tensor=ring) if state.by_tensor else State(ring)


def percentile(
    q: float, window: int = 100, *, min_samples: int | None = None, fallback: float = 1.0, include_current: bool = False
) -> Quantile:
    """Clip at a percentile of the last norms: q = 95 clips about the highest 5 %.

    Args:
        q: in percent, 0 to 100; interpolated linearly, as numpy does.
        window: how many norms are remembered.
        min_samples: how many are needed before they count; 10, or the window if that is less, by default.
        fallback: the threshold until then, > 0; `math.inf` for none.
        include_current: count the norm that is being judged as well, as AutoClip does (arXiv:2007.14469).

    Returns:
        A threshold for `norm`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> percentile(95, window=200).share
        0.95
    """
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 100:
        raise InputError(f"percentile: expected q in percent, between 0 and 100, got {q!r}; for the 95th pass 95")
    needed = check_window(window, min_samples, 10)
    return Quantile(q / 100.0, 1.0, window, needed, fallback, include_current)


def median(
    factor: float = 1.5, window: int = 100, *, min_samples: int | None = None, fallback: float = 1.0
) -> Quantile:
    """Clip at a multiple of the median of the last norms, which half of them being spikes does not move.

    The median of an even number of norms is the mean of the two in the middle, as numpy has it (torch.median takes
    the lower).

    Args:
        factor: multiple, > 0.
        window: how many norms are remembered.
        min_samples: how many are needed before they count; 10, or the window if that is less, by default.
        fallback: the threshold until then, > 0; `math.inf` for none.

    Returns:
        A threshold for `norm`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> median(2.0, window=50).factor
        2.0
    """
    needed = check_window(window, min_samples, 10)
    return Quantile(0.5, check_positive(factor, "factor"), window, needed, fallback, False)


def check_window(window: int, min_samples: int | None, usual: int) -> int:
    """Return how many samples are needed: those given, or `usual` if the window holds that many.

    Raises:
        InputError: the window can never hold enough.
    """
    check_count(window, "window")
    if min_samples is None:
        return min(usual, window)
    check_count(min_samples, "min_samples")
    if min_samples > window:
        raise InputError(
            f"min_samples: expected at most the window ({window}), got {min_samples}; the threshold would never count"
        )
    return min_samples
