"""How many bytes of results are alive at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HeldBytes(TorchDispatchMode):
    """Counts the storage of everything that operations return; `peak` is the most at a time.

    Args:
        inputs: tensors whose storage was there before.
    """

    def __init__(self, inputs: Any = ()) -> None:
        super().__init__()
        self._inputs = {each.untyped_storage().data_ptr() for each in inputs}
        self._holders: dict[int, int] = {}
        self.held = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in self._inputs:
                self._take(each)
        return result

    def _take(self, tensor: torch.Tensor) -> None:
        key, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if not self._holders.get(key):
            self.held += size
            self.peak = max(self.peak, self.held)
        self._holders[key] = self._holders.get(key, 0) + 1
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            self.held -= size
