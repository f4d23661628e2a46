"""Optimizers that step inside the backward pass, one for each parameter: one backward pass is one step.

Each of them sees a single gradient and frees it, so no clip by global norm is possible; their readings are joined into
one frame when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradmedic.probes.pending import ClipCount, PendingFrame

NAME = "in_backward"


def merge_steps(steps: Sequence[PendingFrame], step: int, count: ClipCount) -> PendingFrame:
    """Join the steps of one backward pass.

    Args:
        steps: what each optimizer left, in the order in which they stepped; at least one.
        step: index of the joint step.
        count: running clip frequency of the joint steps.

    Returns:
        One pending frame under the name `in_backward`, its tensors in the order of the steps.
    """
    first = steps[0]
    frame = first.frame
    frame.optimizer, frame.step = NAME, step
    frame.lrs = tuple(dict.fromkeys(rate for each in steps for rate in each.frame.lrs))
    merged = PendingFrame(frame, (), [], count, full=first.full, keep=first.keep)
    columns: dict[str, list[tuple[torch.Tensor, list[int]]]] = {}
    for each in steps:
        start = len(merged.names)
        merged.names += each.names
        merged.readings.extend((reading, [start + at for at in places]) for reading, places in each.readings)
        merged.hidden.extend(start + at for at in each.hidden)
        for name, (values, places) in each.vectors.items():
            columns.setdefault(name, []).append((values, [start + at for at in places]))
    for name, parts in columns.items():
        home = parts[0][0].device
        values = torch.cat([part.to(home) for part, _ in parts])
        merged.vectors[name] = (values, [at for _, places in parts for at in places])
    return merged
