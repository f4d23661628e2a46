"""What an optimizer holds."""

from __future__ import annotations

from typing import Any

import torch


def held_by(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors in an optimizer's parameter groups, in order; whatever else stands there is passed over."""
    held: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        listed = group.get("params")
        if listed is None or isinstance(listed, torch.Tensor):
            listed = [listed]
        held.extend([each for each in listed if isinstance(each, torch.Tensor)])
    return held
