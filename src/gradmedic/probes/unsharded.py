"""Where the gradient of a weight that `fully_shard` has divided is whole, and this rank's own: before the reduction.

What `fully_shard` gathers for a pass is a parameter of its own, which the graph uses in place of the part that the
optimizer has. torch gives no public way to it: what is looked up here is guarded, and where another version of torch
calls it otherwise, nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn


def gathered_weights(models: Iterable[nn.Module]) -> dict[int, Any]:
    """Return torch's own holder of each divided weight, by the `id` of the part that the optimizer has.

    Empty where nothing is divided by `fully_shard`.
    """
    found: dict[int, Any] = {}
    for model in models:
        for module in model.modules():
            for holder in _holders(module):
                part = getattr(holder, "sharded_param", None)
                if part is not None:
                    found[id(part)] = holder
    return found


def whole_weight(holder: Any) -> torch.Tensor | None:
    """Return the gathered weight, whose memory may be gone; None before the first pass, or where ranks divide it too.

    Under tensor parallelism on top, each rank has a part of it even then.
    """
    weight = getattr(holder, "_unsharded_param", None)
    return weight if isinstance(weight, torch.Tensor) and type(weight) in (torch.Tensor, nn.Parameter) else None


def added_before(holder: Any) -> torch.Tensor | None:
    """Return what earlier passes of this step have left unreduced, beside the gradient at hand; None if nothing."""
    earlier = getattr(holder, "unsharded_accumulated_grad", None)
    return earlier if isinstance(earlier, torch.Tensor) else None


def _holders(module: nn.Module) -> Iterator[Any]:
    ask = getattr(type(module), "_get_fsdp_state", None)
    if ask is None:
        return
    state = ask(module)
    groups = getattr(state, "_fsdp_param_groups", None)  # several a module from torch 2.12 on
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        yield from getattr(group, "fsdp_params", ())
