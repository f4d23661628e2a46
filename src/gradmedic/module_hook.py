"""Hooks for modules that no copy of a module carries along; `torch_hooks` puts them on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from gradmedic.torch_state import passive


class ModuleHook:
    """A hook on a module that no copy or pickle of the module carries along.

    A deep copy or a pickle made while it is on gets a function of the standard library in its place, which takes any
    arguments and returns None: the copy works without gradmedic, and does nothing.
    """

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[..., None]) -> None:
        self._callback = callback

    def __call__(self, module: Any, *rest: Any) -> None:
        if not passive():
            self._callback(module, *rest)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class OutputHook(ModuleHook):
    """A hook that is called with a module's output, and nothing else; see `ModuleHook`."""

    __slots__ = ()

    def __call__(self, module: Any, *rest: Any) -> None:
        if not passive():
            self._callback(rest[-1])
