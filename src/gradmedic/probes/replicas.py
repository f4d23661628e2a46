"""Whether a model's gradients are averaged over ranks, so that all of them must do the same to them.

Plain tensors do not say: two ranks may as well train two models. DistributedDataParallel does.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from gradmedic import torch_hooks
from gradmedic.process_rank import several_ranks


class Replicas:
    """Finds the wrapper that averages the gradients of some parameters."""

    def __init__(self) -> None:
        self._wrapper: weakref.ref[Any] | None = None
        self._looked: set[int] = set()
        self._asked = 0
        self._look_at = 1

    def group(self, parameters: Iterable[torch.Tensor]) -> tuple[Any] | None:
        """Return the process group over which their gradients are averaged; None where they are not.

        Looks once for each set of parameters, and anew when the wrapper is gone: another may have taken its place.
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
        wrapper = None if self._wrapper is None else self._wrapper()
        if wrapper is None and self._wrapper is not None and self._is_due():
            self._looked.clear()
        if id(first) not in self._looked:
            self._looked.add(id(first))
            found = _wrapper_of(first)
            if found is not None:
                self._wrapper, wrapper = weakref.ref(found), found
                self._asked, self._look_at = 0, 1
        return wrapper

    def _is_due(self) -> bool:
        """Whether to look for the successor of a wrapper that is gone: more and more seldom, since a look is dear."""
        self._asked += 1
        if self._asked < self._look_at:
            return False
        self._look_at *= 2
        return True


#: Wrappers inside whose `forward` a watched module was seen at work.
_at_work: weakref.WeakSet[Any] = weakref.WeakSet()


def note_wrapper() -> None:
    """Remember the wrapper whose `forward` runs now, if one does; called from the hooks of watched modules."""
    wrapper = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if wrapper is not None:
        _at_work.add(wrapper)


def _wrapper_of(parameter: torch.Tensor) -> Any:
    """Look through all live objects; seldom, and only where a transform treats plain tensors."""
    found = _first_around(parameter, list(_at_work))
    if found is None:
        found = _first_around(parameter, gc.get_objects())
    if found is None and gc.get_freeze_count():  # `gc.freeze()` takes objects off the lists that `get_objects` reads
        found = _first_around(parameter, _reachable())
    return found


def _first_around(parameter: torch.Tensor, things: Iterable[Any]) -> Any:
    kind = nn.parallel.DistributedDataParallel
    for each in things:
        if issubclass(type(each), kind) and any(held is parameter for held in each.parameters()):
            return each
    return None


#: What leads into libraries, where there are hundreds of thousands of objects and no wrapper.
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)


def _reachable() -> Iterator[Any]:
    """Go through what can be reached, frozen or not, from unfrozen objects, the script's globals and our hooks."""
    seen: set[int] = set()
    waiting: list[Any] = [*gc.get_objects(), vars(sys.modules["__main__"]), list(torch_hooks.attached())]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen and gc.is_tracked(thing) and not issubclass(type(thing), _CODE):
            seen.add(id(thing))
            yield thing
            waiting += gc.get_referents(thing)
