"""How gradients change over depth: the profile of one step, its slope, and how straight it is.

The gradient of a bias is the backpropagated signal itself, summed over the batch, whatever the layer's inputs are; the
gradient of a weight is that signal times the inputs. Where a network shrinks or grows in both directions (ReLU layers
of the wrong gain), weights hide the fault and biases show it: with each layer scaling by r, forward activations go as
r^l and backward signals as r^(L-l), so that the weight gradients, their product, are the same at every depth. Hence
biases where there are enough of them, else weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.layout import Layout, is_norm

Places = npt.NDArray[np.int64]
#: Stand-in for the rms of gradients that are exactly zero: below the smallest fp32 denormal, so that it stays lowest.
FLOOR = 1e-46


@dataclass(frozen=True, slots=True)
class Profile:
    """Gradient rms over depth.

    Attributes:
        places: tensors, first layer first.
        ratio: rms of the first over that of the last, along the fitted line.
        per_layer: factor from one layer to the one before it (below 1: vanishing on the way down).
        r2: share of the variance of log rms that the line explains.
        kind: "bias" or "weight".
    """

    places: Places
    ratio: float
    per_layer: float
    r2: float
    kind: str


def layers(layout: Layout, least: int) -> tuple[Places, str]:
    """Return the tensors to profile, first layer first, and their kind; empty when there are fewer than `least`."""
    found: tuple[Places, str] | None = layout.cache.get(("layers", least))
    if found is None:
        found = layout.cache[("layers", least)] = _choose(layout, least)
    return found


def _choose(layout: Layout, least: int) -> tuple[Places, str]:
    weights = layout.sorted(np.flatnonzero(layout.matrix))
    biases = _biases(layout, weights)
    if len(biases) >= least and len(biases) >= len(weights) // 2:
        return biases, "bias"
    return (weights, "weight") if len(weights) >= least else (weights[:0], "weight")


def profile(
    norms: npt.NDArray[np.float64], places: Places, numel: npt.NDArray[np.float64], kind: str
) -> Profile | None:
    """Fit log rms over depth.

    Args:
        norms: gradient norms of several steps [n, P].
        places: tensors to profile, first layer first [L].
        numel: elements of every tensor [P].

    Returns:
        The profile of the median step, or None where a norm is unknown.
    """
    chosen = np.median(norms[:, places], axis=0)
    if not np.isfinite(chosen).all() or not chosen.any():
        return None
    slope, r2 = _line(np.log(np.maximum(chosen / np.sqrt(np.maximum(numel[places], 1.0)), FLOOR)))
    depth = len(places) - 1
    return Profile(places, math.exp(max(-700.0, min(700.0, -slope * depth))), math.exp(-slope), r2, kind)


def activation_growth(norms: npt.NDArray[np.float64], layout: Layout, biases: Places) -> tuple[float, float]:
    """Return how activations grow over depth, as gradients tell: last over first along the fitted line, and its R2.

    The gradient of a linear layer's weight is the backpropagated signal times the layer's inputs, that of its bias the
    signal alone: the quotient of their norms follows the size of the inputs.

    Args:
        norms: gradient norms of several steps [n, P].
        biases: the biases to profile, first layer first [L].

    Returns:
        (growth, R2); (nan, 0.0) where a gradient is zero or unknown, or fewer than three layers have a weight.
    """
    index = {name: place for place, name in enumerate(layout.names)}
    pairs = [(index.get(layout.names[place].removesuffix("bias") + "weight"), int(place)) for place in biases]
    known = [(weight, bias) for weight, bias in pairs if weight is not None]
    if len(known) < 3:
        return math.nan, 0.0
    typical = np.median(norms, axis=0)[np.array(known)]
    with np.errstate(all="ignore"):
        y = np.log(typical[:, 0] / typical[:, 1])
    if not np.isfinite(y).all():
        return math.nan, 0.0
    slope, r2 = _line(y)
    return math.exp(max(-700.0, min(700.0, slope * (len(y) - 1)))), r2


def _line(y: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return slope and R2 of a straight line through equally spaced values."""
    x = np.arange(len(y), dtype=np.float64)
    x -= x.mean()
    centred = y - y.mean()
    slope = float(x @ centred / (x @ x))
    total = float(centred @ centred)
    return slope, slope * slope * float(x @ x) / total if total > 0 else 0.0


def _biases(layout: Layout, weights: Places) -> Places:
    """Return the biases that stand beside these weights, less those that a following normalisation makes idle."""
    index = {name: place for place, name in enumerate(layout.names)}
    following = _norm_follows(layout)
    found = []
    for place in weights:
        fact = layout.facts[place]
        if fact is None:
            continue
        bias = index.get(f"{fact.module}.bias" if fact.module else "bias")
        if bias is not None and bias not in following:
            found.append(bias)
    return np.array(found, dtype=np.int64)


def _norm_follows(layout: Layout) -> set[int]:
    """Return the places whose next module in execution order is a normalisation layer."""
    ordered = layout.sorted(np.arange(len(layout.names)))
    idle: set[int] = set()
    pending: list[int] = []
    module = ""
    for place in ordered:
        fact = layout.facts[place]
        if fact is None:
            continue
        if fact.module != module:
            if is_norm(fact):
                idle.update(pending)
            pending, module = [], fact.module
        pending.append(int(place))
    return idle
