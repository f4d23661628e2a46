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
        self._undo: Callable[[], None] | None = None

    def attach(self, count: Callable[[], int]) -> None:
        """Be told of the steps of an engine among the models.

        Args:
            count: number of steps of all optimizers so far.
        """
        engine = next((model for model in self._roster.models.values() if is_engine(model)), None)
        if engine is None or self._undo is not None:
            return
        self._engine = weakref.ref(engine)
        self._undo = _patch(type(engine), self._after_step, count)

    def detach(self) -> None:
        """Take the patch off."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

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

    def _after_step(self, engine: Any, made: bool) -> None:
        known = None if self._engine is None else self._engine()
        if known is engine and made:
            self._stepped()


def _patch(kind: type[Any], after: Callable[[Any, bool], None], count: Callable[[], int]) -> Callable[[], None]:
    """Wrap the `step` of an engine's class; returns what takes it off again. Nothing is put on the engine itself."""
    owner: Any = next(each for each in kind.__mro__ if "step" in each.__dict__)
    original = owner.__dict__["step"]

    @functools.wraps(original)
    def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        before, steps = _steps_of(engine), count()
        result = original(engine, *args, **kwargs)
        # Where gradients are only accumulated, or another step was seen inside, there is nothing to add.
        if not is_muted() and count() == steps:
            after(engine, before is None or _steps_of(engine) != before)
        return result

    owner.step = step

    def undo() -> None:
        if owner.__dict__.get("step") is step:
            owner.step = original

    return undo


def _steps_of(engine: Any) -> int | None:
    made = getattr(engine, "global_steps", None)
    return made if isinstance(made, int) and math.isfinite(made) else None
