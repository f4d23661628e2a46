"""AutoClip, and its sturdier relative by the median."""

from __future__ import annotations

import math

from gradmedic.clip.norm import NormClip, norm
from gradmedic.clip.thresholds.quantiles import median, percentile


def autoclip(p: float = 10.0, window: int = 1000) -> NormClip:
    """Clip at a percentile of all norms so far, the current one included (AutoClip, arXiv:2007.14469, algorithm 1).

    In a stationary run (100 - p) % of the steps are clipped. The paper keeps the whole history; here it is the last
    `window` norms, so that neither memory nor time grows. The first step is never clipped: the only norm known is its
    own. Put `norm(...)` or a guard before it if that matters. Unlike in the public code, a NaN does not enter the
    history, where it would make every later percentile NaN.

    Args:
        p: in percent; 10 is the paper's choice, 100 never clips.
        window: how many norms are remembered.

    Returns:
        A transform.

    Example:
        >>> autoclip(10).threshold.share
        0.1
    """
    return norm(percentile(p, window, min_samples=1, fallback=math.inf, include_current=True))


def median_clip(
    factor: float = 1.5, window: int = 100, *, min_samples: int | None = None, fallback: float = 1.0
) -> NormClip:
    """Clip at a multiple of the rolling median of the norms before clipping.

    Args:
        factor: multiple of the median, > 0.
        window: how many norms are remembered.
        min_samples: how many are needed before they count; 10, or the window if that is less, by default.
        fallback: threshold until then, > 0; `math.inf` for none.

    Returns:
        A transform.

    Example:
        >>> median_clip().threshold.window
        100
    """
    return norm(median(factor, window, min_samples=min_samples, fallback=fallback))
