"""What an optimizer holds."""

from __future__ import annotations

from typing import Any

import torch


def held_by(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors in an optimizer's parameter groups, in order; whatever else stands there is passed over."""
    held: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        held.extend(held_in(group))
    return held


def held_in(group: Any) -> list[torch.Tensor]:
    """Return the tensors in one parameter group, in order."""
    listed = group.get("params")
    if listed is None or isinstance(listed, torch.Tensor):
        listed = [listed]
    return [each for each in listed if isinstance(each, torch.Tensor)]
