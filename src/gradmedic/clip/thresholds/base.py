"""What a threshold is: a number, a schedule, or a rule that follows the norms seen so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.errors import InputError
from gradmedic.user_errors import WrongAnswer, is_users


@runtime_checkable
class Threshold(Protocol):
    """Pure functions, for one signal (the joint norm, shape ()) or for one of each tensor (shape [N])."""

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """Return the first state for a signal of this shape."""
        ...

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the threshold, of the signal's shape; infinite where there is none. No host synchronisation."""
        ...

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """Return the next state.

        Args:
            signal: the norms before clipping.
            kept: the norms after it.
            valid: whether they count: finite and there, bool.
            state: the state before; it is not changed.
        """
        ...


class Stateless:
    """A threshold that remembers nothing."""

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """There is no state."""
        return State()

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """There is no state."""
        return state


@dataclass(frozen=True, slots=True)
class Constant(Stateless):
    """A fixed number."""

    number: float

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the number."""
        return torch.full_like(signal, self.number)


@dataclass(frozen=True, slots=True)
class Scheduled(Stateless):
    """A function of the step's index."""

    function: Callable[[int], float]

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return what the function says for this step."""
        number = self.function(summary.step)
        try:
            return torch.full_like(signal, check_positive(number, ""))
        except InputError:
            what = f"returned {number!r} as the threshold of step {summary.step}; expected a number > 0"
            raise WrongAnswer(self.function, None, what) from None


def limit_of(threshold: Any, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
    """Return what a threshold says; WrongAnswer where one of the user's own says what fits no signal."""
    limit: torch.Tensor = threshold.value(signal, state, summary)
    if not is_users(type(threshold), "value"):
        return limit
    if getattr(limit, "shape", None) not in ((), signal.shape):
        shape = getattr(limit, "shape", None)
        came = f"a {type(limit).__name__}" if shape is None else f"a tensor of shape {tuple(shape)}"
        what = f"returned {came}; expected a tensor of shape {tuple(signal.shape)}, as its signal"
        raise WrongAnswer(threshold.value, threshold, what)
    if not (summary.on_host and limit.device.type == "cpu"):
        return torch.where(limit > 0, limit, torch.inf)  # a negative one would turn gradients round
    if bool((bad := ~(limit > 0)).any()):
        what = f"returned {float(limit[bad].reshape(-1)[0]):g} as a threshold of step {summary.step}; expected > 0"
        raise WrongAnswer(threshold.value, threshold, what)
    return limit


class Adaptive:
    """A threshold that follows the norms; until it has seen enough of them, its `fallback` holds."""

    fallback: float

    def __post_init__(self) -> None:
        check_positive(self.fallback, "fallback")


def as_threshold(given: Any) -> Any:
    """Return a threshold from a number, a function of the step, or a threshold.

    Raises:
        InputError: it is none of them, or a number that is not > 0.
    """
    if hasattr(given, "begin") and hasattr(given, "value") and hasattr(given, "observe"):
        return given
    if hasattr(given, "init") and hasattr(given, "update"):
        raise InputError(
            f"threshold: expected a number > 0, a function of the step, or a threshold such as gm.clip.percentile(95), "
            f"got the transform {given!r}; put transforms one after the other with gm.clip.chain"
        )
    if callable(given) and not isinstance(given, type):
        check_threshold(given(0), "threshold(0)")
        return Scheduled(given)
    return Constant(check_threshold(given, "threshold"))


def check_positive(value: object, name: str, hint: str = "") -> float:
    """Return a number > 0 as a float; the hint ends the message.

    Raises:
        InputError: if it is not a number > 0.
    """
    try:
        number = float("nan") if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a number > 0, got {value!r}") from None
    if math.isnan(number) or number <= 0:
        raise InputError(f"{name}: expected a number > 0, got {value!r}{hint}")
    return number


def check_threshold(value: object, name: str) -> float:
    """Return a limit of gradients as a float; raises InputError if it is not a number > 0."""
    hint = (
        "; a negative threshold would reverse the gradients and 0 would erase them. Leave the clip out, or pass "
        "math.inf to measure only"
    )
    return check_positive(value, name, hint)


def check_count(value: object, name: str, least: int = 1) -> int:
    """Return a whole number that is at least `least`; raises InputError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return value


def check_share(value: object, name: str) -> float:
    """Return a number in (0, 1); raises InputError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")
    return float(value)
