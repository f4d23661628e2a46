"""Asking a transform, and looking at what one of the user's own has answered before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch

from gradmedic.clip.admission import nested
from gradmedic.clip.base import Decision, Halt, Reason
from gradmedic.clip.factors import made_sound, unsound
from gradmedic.clip.operations import Limit, MomentLimit, Scale, UnitScale
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.user_errors import WrongAnswer, is_users

#: Where an operation by element keeps what it does, by position.
_HELD: Mapping[type, str] = {UnitScale: "factors", Limit: "limits", MomentLimit: "moments"}


def ask(transform: Any, summary: GradientSummary, state: State) -> tuple[Decision, State]:
    """Return the decision of a transform about one step, and its next state.

    Raises:
        WrongAnswer: the user's own has returned something that is no such pair, does not fit the tensors, or would
            multiply by what is no factor. Values that lie on a device are not read: a factor there that is NaN,
            infinite or negative counts as 1, and the decision notes how many did.
    """
    answer = transform.update(summary, state)
    if is_users(type(transform), "update"):
        trouble = _trouble(answer, len(summary.spec))
        if trouble is not None:
            raise _wrong(transform, f"returned {trouble}")
        decision, after = answer
        for operation in decision.operations:
            trouble = unsound(operation, summary.on_host)
            if trouble is not None:
                raise _wrong(transform, f"returned {trouble}")
        return made_sound(decision, type(transform).__name__, summary.on_host), after
    decision, after = answer
    return decision, after


def check_first_state(transform: Any, state: Any) -> None:
    """Raise WrongAnswer if `init` of a transform has returned no state."""
    if not isinstance(state, State):
        raise _wrong(transform, f"returned {_kind(state)} from init; expected a State", "init")


@contextmanager
def carrying_out(transform: Any) -> Iterator[None]:
    """Blame a user's transform, be it inside of ours, for a decision that cannot be carried out: raises WrongAnswer."""
    try:
        yield
    except Exception as error:
        users = [each for each in nested(transform) if is_users(type(each), "update")]
        if not users:
            raise
        what = f"decided what cannot be done to these gradients ({type(error).__name__}: {error})"
        raise _wrong(users[0], what) from error


def _wrong(transform: Any, what: str, method: str = "update") -> WrongAnswer:
    return WrongAnswer(getattr(transform, method), transform, what)


def _trouble(answer: Any, size: int) -> str | None:
    """Return in words what is wrong with an answer: what came, and what was expected; None where it will do."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        return f"{_kind(answer)}; expected the pair (Decision, State)"
    decision, state = answer
    if not isinstance(decision, Decision):
        return f"{_kind(decision)} for its decision; expected a Decision"
    if not isinstance(state, State):
        return f"{_kind(state)} for its next state; expected a State"
    operations: Any = decision.operations
    if not isinstance(operations, (tuple, list)):
        return f"{_kind(operations)} for operations; expected a tuple of them"
    for operation in operations:
        trouble = _of_operation(operation, size)
        if trouble is not None:
            return trouble
    return _of_rest(decision)


def _of_operation(operation: Any, size: int) -> str | None:
    if isinstance(operation, Scale):
        factor = operation.factor
        if _is_real(factor) and (not factor.dim() or factor.shape == (size,)):
            return None
        return f"{_kind(factor)} for the factor of Scale; expected a float64 tensor, 0-d or of shape ({size},)"
    kind = next((each for each in _HELD if isinstance(operation, each)), None)
    if kind is None:
        return f"{_kind(operation)} among its operations; expected Scale, UnitScale, Limit or MomentLimit"
    name = kind.__name__
    held: Any = getattr(operation, _HELD[kind])
    if not isinstance(held, Mapping):
        return f"{_kind(held)} for {name}; expected a mapping of positions of tensors"
    beyond = [at for at in held if not isinstance(at, Integral) or not 0 <= int(at) < size]
    if beyond:
        return f"position {beyond[0]!r} for {name}; expected positions of the {size} tensors, from 0 to {size - 1}"
    if isinstance(operation, UnitScale) and (missing := [at for at in held if at not in operation.dims]):
        return f"no axis of the units of tensor {missing[0]} for {name}; expected one in dims, or None"
    return None


def _of_rest(decision: Any) -> str | None:
    for name, value in (("clipped", decision.clipped), ("threshold", decision.threshold)):
        if value is not None and not _is_single(value):
            return f"{_kind(value)} for {name}; expected a 0-d tensor, or None"
    for name, held, kind in (("skips", decision.skips, Reason), ("halts", decision.halts, Halt)):
        if not isinstance(held, (tuple, list)) or not all(isinstance(each, kind) for each in held):
            return f"{_kind(held)} for {name}; expected a tuple of {kind.__name__}"
        flags = [each.flag for each in held if not (_is_single(each.flag) and each.flag.dtype == torch.bool)]
        if flags:
            return f"{_kind(flags[0])} for the flag of a {kind.__name__}; expected a 0-d bool tensor"
    if not isinstance(decision.notes, Mapping):
        return f"{_kind(decision.notes)} for notes; expected a mapping of names to numbers"
    notes: list[Any] = list(decision.notes.values())
    wrong = [note for note in notes if not _is_number(note)]
    return f"{_kind(wrong[0])} among its notes; expected 0-d tensors" if wrong else None


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_complex() and value.dtype != torch.bool


def _is_number(value: Any) -> bool:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, (int, float)) or _is_single(value)


def _is_single(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex()


def _kind(value: Any) -> str:
    """Return what a value is, in a few words; never what is in it."""
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
