"""The overfit probe: can the network learn one batch by heart? If not, the labels are not to blame (GM510)."""

from __future__ import annotations

import math
import time

import torch

from gradmedic.probing.result import ProbeResult
from gradmedic.probing.target import Target
from gradmedic.probing.untouched import Held

#: Samples that are learned, steps, and learning rates of Adam that are tried in turn.
ROWS = 16
STEPS = 200
RATES: tuple[float, ...] = (3e-3, 3e-4)
#: Parts of the first loss below which the batch is fitted, and above which it is not.
FITS, FAILS = 0.1, 0.7


def overfit(target: Target, held: Held, seconds: float = 10.0) -> ProbeResult:
    """Train a copy of the weights on at most 16 samples with Adam, at a rate that suits most networks.

    Args:
        target: what is probed.
        held: the model, which may be changed; its weights are afterwards what they were.
        seconds: time that may be spent.

    Returns:
        Verdict "fits", "partly", "does_not_fit", or "needs" where the loss is not above zero; numbers "loss" (at
        first), "loss_fitted" (the lowest), "steps".
    """
    rows = target.rows()
    batch = [each[:ROWS] for each in target.batch] if rows > ROWS else list(target.batch)
    first = target.value(held, batch)
    if not first > 0:
        return ProbeResult("overfit", "needs", {"loss": first}, reason="a loss above zero")
    base = [each.data for each in held.parameters]
    ends = time.perf_counter() + seconds
    lowest, made = first, 0
    try:
        for rate in RATES:
            shadows = [start.clone() for start in base]
            for each, shadow in zip(held.parameters, shadows, strict=True):
                each.data = shadow
            reached, steps = _train(target, held, shadows, batch, rate, FITS * first, ends)
            lowest, made = min(lowest, reached), made + steps
            if lowest <= FITS * first or time.perf_counter() > ends:
                break
    finally:
        for each, start in zip(held.parameters, base, strict=True):
            each.data = start
    share = lowest / first
    verdict = "fits" if share <= FITS else ("does_not_fit" if share > FAILS else "partly")
    return ProbeResult("overfit", verdict, {"loss": first, "loss_fitted": lowest, "steps": float(made)})


def _train(
    target: Target,
    held: Held,
    shadows: list[torch.Tensor],
    batch: list[torch.Tensor],
    rate: float,
    enough: float,
    ends: float,
) -> tuple[float, int]:
    """Train tensors that share the parameters' storage; return the lowest loss, and the steps that were made.

    Were the parameters themselves changed in place, a graph of the host that waits for its backward pass would be lost.
    """
    optimizer = torch.optim.Adam(shadows, lr=rate)
    lowest = math.inf
    for step in range(STEPS):
        loss = target.loss(held, batch)
        value = float(loss.detach())
        lowest = min(lowest, value)
        if not math.isfinite(value) or value <= enough or time.perf_counter() > ends or not loss.requires_grad:
            return lowest, step
        gradients = torch.autograd.grad(loss, held.parameters, allow_unused=True)
        for shadow, gradient in zip(shadows, gradients, strict=True):
            shadow.grad = gradient
        optimizer.step()
    return lowest, STEPS
