"""The line probe: the loss of one batch along the step that the optimizer makes.

Verdicts: "descends"; "too_far" (a part of the step lowers the loss, the whole raises it: the learning rate is too
high); "too_short" (ten steps at once lower it by less than a thousandth, in a straight line: too low); "ascends" (every
part raises it, and the gradients that are used point against those of the loss: a wrong sign); "uncertain".
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradmedic.holdings import held_by
from gradmedic.probing.result import ProbeResult
from gradmedic.probing.target import Target
from gradmedic.probing.untouched import Held

#: Parts of the step at which the loss is computed.
SCALES: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
#: Cosine of the used gradients with those of the loss, below which they point the other way.
_AGAINST = -0.5
#: Fall of the loss over ten steps, as a part of it, below which steps are too short (rules.md: 1 % in 100 steps).
_SHORT = 1e-3
#: Ratio of the falls over ten steps and over one from which on the loss is a straight line.
_STRAIGHT = 8.0


def line(target: Target, held: Held) -> ProbeResult:
    """Compute the loss along the next step.

    The gradients are those that stand in `.grad` (of the step just made, or about to be made), else those of the loss;
    a copy of the optimizer, with its state, turns them into a step.

    Args:
        target: what is probed.
        held: the model, which may be changed.

    Returns:
        Numbers: "loss", "loss_at_0.01" to "loss_at_10", "slope" (derivative of the loss along the step), "cosine" (of
        the used gradients with those of the loss). Host synchronisations: one for each loss.
    """
    if not target.optimizers:
        return ProbeResult("line", "needs", reason="an optimizer that steps this model")
    own = target.gradient(held)
    kept = held.gradients if target.fresh_gradients else []
    used = list(kept) if any(each is not None for each in kept) else list(own)
    if all(each is None for each in used):
        return ProbeResult("line", "needs", reason="a loss that depends on the model's weights")
    try:
        deltas = _step(target, held, used)
    except Exception as error:
        return ProbeResult("line", "needs", reason=f"an optimizer that can be copied ({type(error).__name__}: {error})")
    slope = _dot(own, deltas)
    cosine = _dot(own, used) / max(math.sqrt(_dot(own, own) * _dot(used, used)), 1e-300)
    numbers = {"loss": target.value(held)} | _along(target, held, deltas)
    maximizes = any(group.get("maximize") for each in target.optimizers.values() for group in each.param_groups)
    verdict = judge(numbers, slope=slope, cosine=cosine, maximizes=maximizes)
    return ProbeResult("line", verdict, {**numbers, "slope": slope, "cosine": cosine})


def judge(numbers: Mapping[str, float], *, slope: float, cosine: float, maximizes: bool = False) -> str:
    """Return the verdict on losses along a step.

    Args:
        numbers: "loss", and "loss_at_…" for each of `SCALES`.
        slope: derivative of the loss along the step, which is known also where the step changes no digit of the loss.
        cosine: of the used gradients with those of the loss.
        maximizes: whether the optimizer was told to maximise.
    """
    start = numbers["loss"]
    change = {scale: numbers[f"loss_at_{scale:g}"] - start for scale in SCALES}
    noise = 1e-7 * abs(start)
    if math.isnan(start):
        return "uncertain"
    parts = [change[scale] for scale in SCALES if scale < 1]
    if all(each > noise for each in (*parts[1:], change[1.0])):
        return "ascends" if maximizes or cosine < _AGAINST else "uncertain"
    if not change[1.0] <= noise and min(each for each in parts if not math.isnan(each)) < -noise:
        return "too_far"
    if change[1.0] > noise or math.isnan(change[1.0]):
        return "uncertain"
    tenfold = change[10.0]
    straight = tenfold <= _STRAIGHT * change[1.0] or abs(10 * slope) <= noise
    if slope < 0 and max(-tenfold, -10 * slope) < _SHORT * abs(start) and straight:
        return "too_short"
    return "descends" if change[1.0] < 0 else "uncertain"


def _along(target: Target, held: Held, deltas: Sequence[torch.Tensor | None]) -> dict[str, float]:
    base = [each.data for each in held.parameters]
    found: dict[str, float] = {}
    try:
        for scale in SCALES:
            for parameter, start, delta in zip(held.parameters, base, deltas, strict=True):
                if delta is not None:
                    parameter.data = start + scale * delta
            found[f"loss_at_{scale:g}"] = target.value(held)
    finally:
        for parameter, start in zip(held.parameters, base, strict=True):
            parameter.data = start
    return found


def _step(target: Target, held: Held, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return by how much copies of the optimizers would move the parameters."""
    factor = 1.0
    if target.clip is not None:
        factor = min(1.0, target.clip / max(math.sqrt(_dot(gradients, gradients)), 1e-300))
    wanted = {id(each): gradient for each, gradient in zip(held.parameters, gradients, strict=True)}
    moved: dict[int, torch.Tensor] = {}
    for given in target.optimizers.values():
        optimizer = getattr(given, "optimizer", given)  # accelerate wraps optimizers
        twin = copy.deepcopy(optimizer)
        pairs = list(zip(held_by(optimizer), held_by(twin), strict=True))
        for own, copied in pairs:
            gradient = wanted.get(id(own))
            copied.grad = None if gradient is None else (gradient * factor).to(copied.dtype)
        # A scheduler replaces `optimizer.step` by one that is bound to the original.
        type(twin).step(twin)
        moved.update((id(own), copied.detach() - own.detach()) for own, copied in pairs)
    return [moved.get(id(each)) for each in held.parameters]


def _dot(first: Sequence[torch.Tensor | None], second: Sequence[torch.Tensor | None]) -> float:
    pairs: list[tuple[Any, Any]] = [
        (a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None
    ]
    return float(sum(float((a.double() * b.double()).sum()) for a, b in pairs))
