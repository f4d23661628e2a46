"""The floating tensors that a node has saved, for the search for a non-finite value's origin.

Reading a saved tensor of a checkpointed region recomputes that region (torch keeps the random state); the search runs
at most a few times in a run, and only after a value was lost already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.stats.parts import has_memory

_RESULTS = ("result", "output", "out", "indices", "logsumexp")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class Saved:
    """A float tensor that a node has saved; `is_result` tells its output from its inputs, `whole` is it unflattened."""

    name: str
    tensor: torch.Tensor
    is_result: bool
    whole: torch.Tensor

    @property
    def finite(self) -> bool:
        """Whether all of it is."""
        return bool(torch.isfinite(self.tensor).all())


def saved_tensors(node: Any) -> list[Saved]:
    """Return the floating tensors that a node has saved, those left out that were freed or changed since."""
    found: list[Saved] = []
    for key in dir(node):
        if not key.startswith("_saved_") or key.endswith(("_sizes", "_strides")):
            continue
        try:
            value = getattr(node, key)
        except (RuntimeError, AttributeError):  # freed, or changed in place since
            continue
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and _is_float(tensor) and is_readable(tensor.detach()):
                is_result = key.removeprefix("_saved_").rstrip("0123456789") in _RESULTS
                found.append(Saved(key, tensor.detach(), is_result, _before_flattening(tensor).detach()))
    return found


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain one whose values are there."""
    plain = tensor.layout == torch.strided and tensor.device.type != "meta" and type(tensor) in _PLAIN
    return plain and (not tensor.numel() or has_memory(tensor))


def range_of(saved: Sequence[Saved]) -> str:
    """Return a phrase with the range of the first finite input among saved tensors, "" where there is none."""
    for each in saved:
        if not each.is_result and each.tensor.numel() and not each.tensor.is_complex() and each.finite:
            low, high = (float(value) for value in torch.aminmax(each.tensor.float()))
            return f"its input ran from {low:.4g} to {high:.4g}"
    return ""


def _before_flattening(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a saved tensor is a view of, when it holds all of it: a layer flattens [batch, time, features]."""
    base = tensor._base
    fits = base is not None and base.dim() > tensor.dim() and base.numel() == tensor.numel() and base.is_contiguous()
    return base if fits and base is not None and is_readable(base) else tensor


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
