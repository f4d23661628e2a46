"""The future probe: do predictions depend on what comes later in the sequence (GM513)?

Exact for any architecture: later inputs are exchanged for those of other samples, and earlier outputs are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradmedic.probes.leaves import tensor_leaves
from gradmedic.probes.token_feeds import MIN_LENGTH, next_token_numbers
from gradmedic.probing.result import ProbeResult
from gradmedic.probing.target import Target
from gradmedic.probing.untouched import Held

#: Change of an output, over the spread of outputs, from which on it depends on later inputs: well above rounding.
CHANGED = 1e-4
#: Share of the targets that are the next id, from which on a look ahead is a leak.
NEXT = 0.95


def future(target: Target, held: Held) -> ProbeResult:
    """Change the second half of each sequence, and compare the outputs of the first half.

    The first tensor of the batch is taken for the sequences, [batch, time] or [batch, time, features]; modules are in
    evaluation mode, so that neither dropout nor a batch norm connects places.

    Returns:
        Verdict "leak" (outputs depend on later inputs, and the targets are the next ids), "looks_ahead" (they depend on
        them, and something else is predicted, or it is not known what), "causal", or "needs". Numbers: "change"
        (largest change of an earlier output over the outputs' standard deviation), "next_share".
    """
    if not target.batch or target.rows() < 2 or target.batch[0].dim() not in (2, 3):
        return ProbeResult("future", "needs", reason="sequences: a first tensor of shape [batch, time] or more")
    given = target.batch[0]
    samples, length = given.shape[:2]
    if length < MIN_LENGTH or (given.is_floating_point() and given.dim() == 2):
        return ProbeResult("future", "needs", reason="sequences of ids, or of vectors, of at least 4 places")
    for model in target.models:
        model.eval()
    cut = length // 2
    changed = torch.cat([given[:, :cut], given.roll(1, 0)[:, cut:]], 1)
    outputs: list[torch.Tensor] = []
    for first in (given, changed):
        with _outputs(target.models) as caught:
            target.loss(held, [first, *target.batch[1:]])
        found = next((made for each in caught if (made := _by_place(each, samples, length)) is not None), None)
        if found is None:
            return ProbeResult("future", "needs", reason="a watched model whose output has a place for each input")
        outputs.append(found[:, :cut].float())
    change = float((outputs[0] - outputs[1]).abs().max() / outputs[0].std().clamp(min=1e-12))
    numbers = {"change": change}
    if len(target.batch) > 1 and not given.is_floating_point():
        shares = next_token_numbers(given, target.batch[-1]) if given.dim() == 2 else {}
        numbers |= {key: float(value) for key, value in shares.items() if key in ("next_share", "same_share")}
    if change <= CHANGED:
        return ProbeResult("future", "causal", numbers)
    leaks = numbers.get("next_share", 0.0) >= NEXT > numbers.get("same_share", 0.0)
    return ProbeResult("future", "leak" if leaks else "looks_ahead", numbers)


@contextmanager
def _outputs(models: Any) -> Iterator[list[torch.Tensor]]:
    """Catch what the models put out, the last call first."""
    caught: list[torch.Tensor] = []

    def catch(_module: nn.Module, _args: Any, output: Any) -> None:
        caught[:0] = [each.detach() for each in tensor_leaves(output) if each.is_floating_point()]

    hooks = [model.register_forward_hook(catch) for model in models]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


def _by_place(output: torch.Tensor, samples: int, length: int) -> torch.Tensor | None:
    """Return an output as [batch, time, features]; None where it has no such axes."""
    shape = tuple(output.shape)
    if len(shape) >= 2 and shape[:2] == (samples, length):
        return output.reshape(samples, length, -1)
    if len(shape) == 2 and shape[0] == samples * length:
        return output.reshape(samples, length, -1)
    if len(shape) == 3 and shape[0] == samples and shape[2] == length:
        return output.transpose(1, 2)
    return None
