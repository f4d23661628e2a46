"""What a CUDA graph does with what was captured: the same operations again, on the same memory, without the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: What a graph cannot hold: the host reads a value, or the size of a result follows from one.
UNFIT = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "bincount"}


class Tape(TorchDispatchMode):
    """Captures operations; `replay` runs them again, each result going to the memory that it had."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        assert name not in UNFIT, f"{name} cannot be captured"
        result = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, former in self.operations:
            result = func(*args, **kwargs)
            if func.is_view or "out" in kwargs:
                continue
            for kept, fresh in zip(tree_leaves(former), tree_leaves(result), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != fresh.data_ptr():
                    kept.copy_(fresh)
