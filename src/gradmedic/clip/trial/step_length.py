"""What a clip factor does to the step that the optimizer makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradmedic.frame import Array

#: Optimizers that divide by a running size of the gradients: a constant factor cancels out.
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "lamb", "adafactor", "adadelta", "adabelief", "sophia")
#: Optimizers that keep signs or directions only.
_SIGN = ("lion", "sign", "muon", "rprop")
_PLAIN = ("sgd", "asgd", "lars")


def family_of(kind: str) -> str:
    """Return "adaptive", "sign", "plain" or "unknown" for the name of an optimizer's class."""
    name = kind.lower()
    for family, words in (("plain", ("asgd",)), ("sign", _SIGN), ("adaptive", _ADAPTIVE), ("plain", _PLAIN)):
        if any(word in name for word in words):
            return family
    return "unknown"


def step_ratio(family: str, defaults: Mapping[str, Any], norms: Array, scale: Array, skipped: Array) -> float | None:
    """Return the mean length of the update relative to that without clipping.

    For plain optimizers this is the mean factor. For Adam and its kin the update is modelled by the norms alone, as
    that of one coordinate whose gradient has their size: m / sqrt(v), with the optimizer's own decays. For optimizers
    that keep signs it is 1: a factor changes no sign. A skipped step counts as 0.

    Args:
        family: see `family_of`.
        defaults: the optimizer's own settings.
        norms: before clipping, finite and > 0, [S].
        scale: joint factors, [S].
        skipped: bool [S].
    """
    if not len(norms) or family == "unknown":
        return None
    made = ~skipped
    if family == "plain":
        return float(np.where(made, scale, 0.0).mean())
    if family == "sign":
        return float(made.mean())
    first, second = _decays(defaults)
    # Both at once: row 0 as the run was, row 1 with the method.
    values = np.stack([norms, norms * scale]) / norms.max()
    moves = np.stack([np.ones_like(made), made])
    lengths = np.zeros_like(values)
    mean, square = np.zeros(2), np.zeros(2)
    weight, weight_square = np.zeros(2), np.zeros(2)
    for at in range(values.shape[1]):
        now, moved = values[:, at], moves[:, at]
        mean = np.where(moved, first * mean + (1 - first) * now, mean)
        square = np.where(moved, second * square + (1 - second) * now**2, square)
        weight = np.where(moved, first * weight + 1 - first, weight)
        weight_square = np.where(moved, second * weight_square + 1 - second, weight_square)
        size = np.sqrt(square / np.where(weight_square > 0, weight_square, 1.0))
        step = mean / np.where(weight > 0, weight, 1.0)
        lengths[:, at] = np.where(moved & (size > 0), step / np.where(size > 0, size, 1.0), 0.0)
    return float(lengths[1].mean() / lengths[0].mean())


def _decays(defaults: Mapping[str, Any]) -> tuple[float, float]:
    betas = defaults.get("betas")
    if isinstance(betas, (list, tuple)) and len(betas) >= 2:
        found = [float(beta) for beta in betas[:2] if isinstance(beta, (int, float))]
        if len(found) == 2 and all(0 <= beta < 1 for beta in found):
            return found[0], found[1]
    for key in ("alpha", "rho"):
        decay = defaults.get(key)
        if isinstance(decay, (int, float)) and 0 <= decay < 1:
            return 0.0, float(decay)
    return 0.9, 0.999
