"""How the signal of the first step goes through a network: sizes of weights and of activations over depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.frame import Frame

#: Effect size from which a variance counts as that of no scheme (rules.md).
_FACTOR = 4.0
#: Fan-in times the variance of torch's default initialisation of linear and convolutional layers.
_SMALLEST = 1 / 3
_FIRST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Chain:
    """The layers of one pass, in forward order.

    Attributes:
        step: when it was seen.
        modules: names of the layers whose weights make the line.
        layers: number of activations that it goes through.
        growth: rms of the last over that of the first hidden activations; the output counts where it is known.
        r2: share of the variance of log rms over depth that a straight line explains.
        fading: what is left, in the last hidden activations, of the differences between samples in the first; NaN when
            unknown. `fading_r2` says how straight their logarithm falls.
        scale: median over layers of the weights' standard deviation over that of He initialisation.
        oversized: share of layers whose variance is more than four times that of every usual scheme (He by fan-in or
            fan-out, Xavier, LeCun, torch's default, orthogonal, 0.02).
        undersized: share of layers, the last one left out, whose variance is less than a quarter of torch's default,
            the smallest of the schemes that depend on fan-in.
        sigmoids: whether most activations are sigmoids, whose slope of at most 1/4 fades any signal.
        saturated: share of elements at their limits, of each bounded activation.
    """

    step: int
    modules: tuple[str, ...]
    layers: int
    growth: float
    r2: float
    fading: float
    fading_r2: float
    scale: float
    oversized: float
    undersized: float = 0.0
    sigmoids: bool = False
    saturated: tuple[float, ...] = ()


def chain_of(frame: Frame) -> Chain | None:
    """Return the chain that a frame's rows of `what` "weights" make.

    Args:
        frame: of one of the first three steps.

    Returns:
        None for a later frame, or one with fewer than two layers whose inputs are known.
    """
    if frame.step >= _FIRST_STEPS:
        return None
    rows = [SampledRow(frame.step, row) for row in frame.modules if row.get("what") == "weights"]
    rows = sorted((row for row in rows if row.get("rms") > 0), key=lambda row: row.get("order"))
    # The scale of the data is another matter; a first hidden state of zeros has none.
    hidden = [row for row in rows if row.get("hidden") > 0 and 0 < row.get("input_rms") < math.inf]
    sizes = [row.get("input_rms") for row in hidden]
    output = rows[-1].get("output_rms") if rows else math.nan
    if 0 < output < math.inf:
        sizes.append(output)
    if len(sizes) < 2:
        return None
    slope, r2 = _line(sizes)
    spreads = [spread for row in hidden if (spread := row.get("input_spread")) == spread]
    return Chain(
        step=frame.step,
        modules=tuple(dict.fromkeys(row.module for row in rows)),
        layers=len(sizes),
        growth=math.exp(max(-700.0, min(700.0, slope * (len(sizes) - 1)))),
        r2=r2,
        fading=spreads[-1] / spreads[0] if len(spreads) > 1 and spreads[0] > 0 else math.nan,
        fading_r2=_line(spreads)[1] if len(spreads) > 1 else 0.0,
        scale=median(math.sqrt(_gain(row) / 2) for row in rows),
        oversized=sum(_gain(row) > _FACTOR * _largest(row) for row in rows) / len(rows),
        undersized=sum(_gain(row) < _SMALLEST / _FACTOR for row in rows[:-1]) / max(1, len(rows) - 1),
        sigmoids=_sigmoids(frame),
        saturated=_saturated(frame),
    )


def _gain(row: SampledRow) -> float:
    """Return the factor by which a layer multiplies the mean square of uncorrelated inputs: 2 for He, 1 for LeCun."""
    return row.get("fan_in") * row.get("rms") ** 2


def _largest(row: SampledRow) -> float:
    """Return the largest gain among the usual schemes: He by fan-in, by fan-out, and N(0, 0.02)."""
    fan_in, fan_out = row.get("fan_in"), max(1.0, row.get("fan_out"))
    return max(2.0, 2.0 * fan_in / fan_out, 0.02**2 * fan_in)


def _sigmoids(frame: Frame) -> bool:
    kinds = [row.get("leaf") for row in frame.modules if row.get("what") == "activation"]
    return 2 * kinds.count("Sigmoid") > len(kinds)


def _saturated(frame: Frame) -> tuple[float, ...]:
    shares = []
    for row in frame.modules:
        sampled = SampledRow(frame.step, row)
        share = sampled.get("saturated_frac")
        if row.get("what") == "activation" and share == share and not sampled.get("gate") > 0:
            shares.append(share)
    return tuple(shares)


def _line(sizes: Sequence[float]) -> tuple[float, float]:
    """Return the slope of log rms over depth and the share of its variance that the line explains."""
    tiny = np.finfo(np.float32).tiny
    y = np.log(np.clip(np.array(sizes, dtype=np.float64), tiny, np.finfo(np.float32).max))
    x = np.arange(len(y), dtype=np.float64)
    x -= x.mean()
    centred = y - y.mean()
    total = float(centred @ centred)
    slope = float(x @ centred / (x @ x))
    return slope, slope * slope * float(x @ x) / total if total > 0 else 0.0
