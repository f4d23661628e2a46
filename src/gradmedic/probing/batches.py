"""Probes that change the batch: doubled (GM503), and with the inputs of other samples, or none (GM514)."""

from __future__ import annotations

import math

import torch

from gradmedic.probing.result import ProbeResult
from gradmedic.probing.target import Target
from gradmedic.probing.untouched import Held

#: Change of the loss, as a part of it, up to which the inputs of other samples make no difference.
SAME = 1e-6
_BATCH_NEEDS = "the batch: monitor.probe(loss_of, inputs, targets), each with samples along its first dimension"


def doubled(target: Target, held: Held) -> ProbeResult:
    """Compute the loss of the batch beside itself.

    Returns:
        Verdict "sum" (the loss doubles), "mean" (it stays) or "other"; numbers "loss", "loss_of_double", "ratio".
    """
    if not target.rows():
        return ProbeResult("batch", "needs", reason=_BATCH_NEEDS)
    loss, double = target.value(held), target.value(held, [torch.cat([each, each]) for each in target.batch])
    ratio = double / loss if loss else math.nan
    # Dropout draws other numbers for the second half.
    verdict = "sum" if 1.8 < ratio < 2.2 else ("mean" if 0.8 < ratio < 1.25 else "other")
    return ProbeResult("batch", verdict, {"loss": loss, "loss_of_double": double, "ratio": ratio})


def other_inputs(target: Target, held: Held) -> ProbeResult:
    """Give each sample the inputs of its neighbour, and then zeros.

    Returns:
        Verdict "ignored" (the loss is the same to six digits) or "used"; numbers "loss", "loss_of_others",
        "loss_of_zeros" (NaN where inputs are ids).
    """
    *inputs, targets = target.batch if len(target.batch) > 1 else (None,)
    if not inputs or target.rows() < 2 or targets is None:
        return ProbeResult("input", "needs", reason=_BATCH_NEEDS)
    moved = [each.roll(1, 0) for each in inputs if each is not None]
    if torch.equal(targets.roll(1, 0), targets):
        return ProbeResult("input", "needs", reason="targets that differ between samples")
    loss, others = target.value(held), target.value(held, [*moved, targets])
    numbers = {"loss": loss, "loss_of_others": others, "loss_of_zeros": math.nan}
    if all(each.is_floating_point() for each in moved):
        numbers["loss_of_zeros"] = target.value(held, [*(torch.zeros_like(each) for each in moved), targets])
    ignored = abs(others - loss) <= SAME * abs(loss)
    return ProbeResult("input", "ignored" if ignored else "used", numbers)
