"""Whether a model's gradients are averaged over ranks, so that all of them must do the same to them.

Plain tensors do not say: two ranks may as well train two models. DistributedDataParallel does.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from gradmedic.process_rank import several_ranks


class Replicas:
    """Finds the wrapper that averages the gradients of some parameters."""

    def __init__(self) -> None:
        self._wrapper: weakref.ref[Any] | None = None
        self._looked: set[int] = set()

    def group(self, parameters: Iterable[torch.Tensor]) -> tuple[Any] | None:
        """Return the process group over which their gradients are averaged; None where they are not.

        Looks once for each set of parameters.
        """
        wrapper = self._find(parameters)
        return None if wrapper is None or wrapper.process_group.size() < 2 else (wrapper.process_group,)

    def uneven(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether the loop runs inside `join()`, where ranks make different numbers of steps."""
        wrapper = self._find(parameters)
        return bool(getattr(getattr(wrapper, "_join_config", None), "enable", False))

    def _find(self, parameters: Iterable[torch.Tensor]) -> Any:
        if not several_ranks():
            return None
        first = next(iter(parameters), None)
        if first is None:
            return None
        if id(first) not in self._looked:
            self._looked.add(id(first))
            found = _wrapper_of(first)
            self._wrapper = self._wrapper if found is None else weakref.ref(found)
        return None if self._wrapper is None else self._wrapper()


def _wrapper_of(parameter: torch.Tensor) -> Any:
    """Look through all live objects; once at the first step, and only where a transform treats plain tensors."""
    kind = nn.parallel.DistributedDataParallel
    for each in gc.get_objects():
        if issubclass(type(each), kind) and any(held is parameter for held in each.parameters()):
            return each
    return None
