"""Engines that keep gradients to themselves: DeepSpeed, Megatron, and whatever has their ways.

Their parameters have no `.grad`, or lose it as soon as it is made. That is no gradient of zero, and no unused
parameter: it cannot be seen from here. Where an engine says what the joint norm was, the step has it from there.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradmedic.muting import is_muted
from gradmedic.roster import Roster


def keeper_of(parameter: torch.Tensor) -> str | None:
    """Return what keeps a parameter's gradient out of `.grad`, None where nothing is known to."""
    if parameter.grad is not None:
        return None
    if hasattr(parameter, "ds_id") or hasattr(parameter, "ds_tensor"):  # ZeRO, stage 3
        return "DeepSpeed"
    if getattr(parameter, "main_grad", None) is not None:  # Megatron-LM, Transformer Engine, apex: added up there
        return "Megatron"
    return None


def is_engine(model: Any) -> bool:
    """Whether a module trains itself by `backward` and `step`, and tells the norm of the gradients that it keeps."""
    kind = type(model)
    return all(callable(getattr(kind, name, None)) for name in ("get_global_grad_norm", "backward", "step"))


def name_of(engine: Any) -> str:
    """Return what an engine is called: "DeepSpeed", or the name of its class."""
    classes = {each.__name__ for each in type(engine).__mro__}
    return "DeepSpeed" if "DeepSpeedEngine" in classes else type(engine).__name__


class EngineSteps:
    """Knows the engine among the watched models, and when it has stepped.

    Args:
        roster: the watched models.
        stepped: called when the engine has made a step that no optimizer of the fleet has made.
    """

    def __init__(self, roster: Roster, stepped: Callable[[], None]) -> None:
        self.name: str | None = None
        self._roster = roster
        self._stepped = stepped
        self._engine: weakref.ref[Any] | None = None
        self._patch: _Patch | None = None
        self._count: Callable[[], int] = int

    def attach(self, count: Callable[[], int]) -> None:
        """Be told of the steps of an engine among the models.

        Args:
            count: number of steps of all optimizers so far.
        """
        engine = next((model for model in self._roster.models.values() if is_engine(model)), None)
        if engine is None or self._patch is not None:
            return
        self._engine, self._count = weakref.ref(engine), count
        self._patch = _patch_of(type(engine))
        self._patch.listeners.add(self)

    def detach(self) -> None:
        """Hear of no more steps; the patch goes with the last who heard of them."""
        patch, self._patch = self._patch, None
        if patch is not None:
            patch.listeners.discard(self)
            patch.take_off_if_unheard()

    def count_for(self, engine: Any) -> int | None:
        """Return how many steps all optimizers have made, None where this is not the engine that is watched."""
        known = None if self._engine is None else self._engine()
        return self._count() if known is engine else None

    def after_step(self, counted: int) -> None:
        """The engine has stepped; nothing is to be added where an optimizer's step was seen inside.

        Args:
            counted: steps of all optimizers before.
        """
        if self._count() == counted:
            self._stepped()

    def norm(self) -> float | None:
        """Return the joint norm of the last step's gradients as the engine knows it, None where it does not."""
        engine = None if self._engine is None else self._engine()
        if engine is None:
            return None
        value = engine.get_global_grad_norm()
        return None if value is None else float(value)

    def hidden(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """Return the positions of the parameters whose gradients cannot be seen, and note who keeps them."""
        engine = None if self._engine is None else self._engine()
        given = None if engine is None else name_of(engine)
        keepers = [
            None if parameter.grad is not None else keeper_of(parameter) or given if parameter.requires_grad else None
            for parameter in parameters
        ]
        found = [at for at, keeper in enumerate(keepers) if keeper is not None]
        if found and len(found) == len(keepers):
            self.name = keepers[found[0]]
        return found


class _Patch:
    """The `step` of a class of engines, wrapped once for all who watch; nothing is put on an engine itself.

    Attributes:
        listeners: who hears of the steps; held weakly.
        step: what stands in the class for as long as anybody listens.
    """

    def __init__(self, owner: Any) -> None:
        self.listeners: weakref.WeakSet[EngineSteps] = weakref.WeakSet()
        self._owner = owner
        self._original = owner.__dict__["step"]
        self.step = self._wrapped()
        owner.step = self.step

    def take_off_if_unheard(self) -> None:
        """Put the class's own `step` back once nobody listens."""
        if len(self.listeners):
            return
        if self.is_on():  # else somebody has wrapped it since, and ours inside does nothing any more
            self._owner.step = self._original
        if _patches.get(self._owner) is self:
            del _patches[self._owner]

    def is_on(self) -> bool:
        """Whether the class has this `step` itself, not inside another's."""
        return self._owner.__dict__.get("step") is self.step

    def _wrapped(self) -> Callable[..., Any]:
        original = self._original

        @functools.wraps(original)
        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            counts = [(each, each.count_for(engine)) for each in list(self.listeners)]
            before = _steps_of(engine)
            result = original(engine, *args, **kwargs)
            # Where gradients are only accumulated there is nothing to add.
            if not is_muted() and (before is None or _steps_of(engine) != before):
                for listener, counted in counts:
                    if counted is not None:
                        listener.after_step(counted)
            return result

        return step


#: Class that has the `step` -> its patch, for as long as anybody listens.
_patches: dict[type[Any], _Patch] = {}


def _patch_of(kind: type[Any]) -> _Patch:
    owner: Any = next(each for each in kind.__mro__ if "step" in each.__dict__)
    patch = _patches.get(owner)
    if patch is None or not patch.is_on():
        patch = _patches[owner] = _Patch(owner)
    return patch


def _steps_of(engine: Any) -> int | None:
    made = getattr(engine, "global_steps", None)
    return made if isinstance(made, int) and math.isfinite(made) else None
