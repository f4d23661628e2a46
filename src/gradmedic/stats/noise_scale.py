"""The gradient noise scale, from the norms of small batches' gradients and of their mean's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """What the norms say of signal and noise.

    Attributes:
        value: B_simple = tr(Sigma) / |G|^2, in small batches; NaN where the signal is not resolved.
        error: its standard error (jackknife over the steps); NaN below three steps.
        squared_norm: |G|^2, of the gradient itself; may come out negative where it drowns.
        trace: tr(Sigma) of one small batch's gradient.
        squared_norms, traces: the same for each step [S].
    """

    value: float
    error: float
    squared_norm: float
    trace: float
    squared_norms: Floats
    traces: Floats


def noise_scale(small: Floats, big: Floats) -> NoiseEstimate:
    """Estimate the gradient noise scale B_simple.

    A batch twice as large as B_simple takes hardly fewer steps; half of it takes hardly less of the data.

    Args:
        small: squared norms of the gradients of R small batches at each of S steps [S, R], R >= 2, S >= 1, finite.
        big: squared norms of the means of these gradients [S].

    Returns:
        Estimates that are unbiased in numerator and denominator, each averaged over the steps before they are divided.

    Source:
        McCandlish, Kaplan, Amodei and the OpenAI Dota team 2018, "An Empirical Model of Large-Batch Training" (arXiv
        1812.06162), appendix A.1, with b = 1 and B = R.

    Example:
        >>> estimate = noise_scale(np.full((1, 8), 5.0), np.array([1.5]))
        >>> estimate.squared_norm, estimate.trace, estimate.value
        (1.0, 4.0, 4.0)
    """
    count = small.shape[1]
    mean_small = small.mean(axis=1)
    squared_norms = (count * big - mean_small) / (count - 1)
    traces = (mean_small - big) / (1 - 1 / count)
    squared_norm, trace = float(squared_norms.mean()), float(traces.mean())
    return NoiseEstimate(
        _ratio(trace, squared_norm), _error(squared_norms, traces), squared_norm, trace, squared_norms, traces
    )


def _ratio(trace: float, squared_norm: float) -> float:
    return trace / squared_norm if squared_norm > 0 else math.nan


def _error(squared_norms: Floats, traces: Floats) -> float:
    """Standard error of the ratio of the means: jackknife, each step left out once."""
    count = len(traces)
    if count < 3:
        return math.nan
    signals = squared_norms.sum() - squared_norms
    if not (signals > 0).all():
        return math.nan
    without = (traces.sum() - traces) / signals
    return float(np.sqrt((count - 1) / count * np.square(without - without.mean()).sum()))
