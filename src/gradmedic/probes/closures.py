"""The closure of an optimizer step: where it lies among the arguments, and how to put another in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradmedic.torch_hooks import StepArguments

Closure = Callable[..., Any]


def closure_of(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Closure, Callable[[Closure], StepArguments]] | tuple[None, None]:
    """Find a closure among a step's arguments.

    Args:
        args: positional ones; the optimizer itself comes first.
        kwargs: named ones.

    Returns:
        The closure, and a function that returns the arguments with another one in its place; (None, None) without one.
    """
    if callable(kwargs.get("closure")):
        return kwargs["closure"], lambda new: (tuple(args), {**kwargs, "closure": new})
    if len(args) > 1 and callable(args[1]):
        return args[1], lambda new: ((args[0], new, *args[2:]), dict(kwargs))
    return None, None
