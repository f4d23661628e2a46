"""What a transform is: pure functions on small vectors that decide how gradients are scaled or a step is skipped.

After optax: `init(spec) -> state` and `update(summary, state) -> (decision, state)`. A transform sees norms, seldom
gradients; its vectors live on the gradients' device and nothing is read back to the host. What it decides is carried
out by `gradmedic.clip.apply`, the one place where gradients are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch

from gradmedic.clip.operations import Operation, Scale
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State, select
from gradmedic.clip.summary import GradientSummary

Scope = Literal["tensor", "model"]
Trip = Literal["halt", "stop"] | Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step may be skipped: whether it is, 0-d bool, and the words for it."""

    flag: torch.Tensor
    text: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Why training may end: whether it does, 0-d bool, the words for it, and how.

    `on_trip` is "halt" (raise `TrainingHalted`), "stop" (close the run, exit with code 0), or a function of the text.
    `step` is the step whose flag it is, filled in when the decision is carried out.
    """

    flag: torch.Tensor
    text: str
    on_trip: Trip = "halt"
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a transform has decided about a step.

    Attributes:
        operations: what is done to the gradients, in this order.
        clipped: whether a threshold was exceeded, 0-d bool.
        threshold: the threshold in force, 0-d float64; None where there is none for the whole.
        skips: why the step may be skipped.
        halts: why training may end.
        notes: further numbers for the frame's `logged`, 0-d.
    """

    operations: tuple[Operation, ...] = ()
    clipped: torch.Tensor | None = None
    threshold: torch.Tensor | None = None
    skips: tuple[Reason, ...] = ()
    halts: tuple[Halt, ...] = ()
    notes: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def scale(self) -> torch.Tensor:
        """Product of all factors by whole tensors: 0-d, or [N] where they differ; float64."""
        product: torch.Tensor | None = None
        for operation in self.operations:
            if isinstance(operation, Scale):
                product = operation.factor if product is None else product * operation.factor
        return torch.ones((), dtype=torch.float64) if product is None else product

    @property
    def skip(self) -> torch.Tensor | None:
        """Whether the step is skipped, 0-d bool; None when nothing in the transform can skip."""
        flag: torch.Tensor | None = None
        for each in [*(reason.flag for reason in self.skips), *(halt.flag for halt in self.halts)]:
            flag = each if flag is None else flag | each
        return flag


def merge(decisions: Iterable[Decision]) -> Decision:
    """Join decisions that were made one after the other; the last threshold is reported."""
    operations: list[Operation] = []
    clipped: torch.Tensor | None = None
    threshold: torch.Tensor | None = None
    skips: list[Reason] = []
    halts: list[Halt] = []
    notes: dict[str, torch.Tensor] = {}
    for decision in decisions:
        operations.extend(decision.operations)
        if decision.clipped is not None:
            clipped = decision.clipped if clipped is None else clipped | decision.clipped
        threshold = decision.threshold if decision.threshold is not None else threshold
        skips.extend(decision.skips)
        halts.extend(decision.halts)
        notes.update(decision.notes)
    return Decision(tuple(operations), clipped, threshold, tuple(skips), tuple(halts), notes)


@runtime_checkable
class Transform(Protocol):
    """A pair of pure functions; see the module's text. `BaseTransform` has defaults for everything else."""

    def init(self, spec: Spec) -> State:
        """Return the first state for these tensors; raises InputError where the transform does not fit them."""
        ...

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step; returns the decision and the next state. No host synchronisation."""
        ...


class BaseTransform:
    """Defaults of a transform.

    Attributes:
        scope: "tensor" when every tensor is decided about by itself, so that it also works where an optimizer steps
            inside backward; "model" when all gradients are needed at once.
        may_skip: whether decisions may skip steps or end training.
        needs: what must be there beside the gradients: "loss", "second_moment".
    """

    scope: ClassVar[Scope] = "model"
    may_skip: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def init(self, spec: Spec) -> State:
        """Return the first state; none is the default."""
        return State()

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """Return the state to go on with; a history does not hold a skipped step."""
        return select(skipped, before, after)


def scope_of(transform: Any) -> Scope:
    """Return a transform's scope; "model" for one that does not say."""
    scope: Scope = getattr(transform, "scope", "model")
    return scope


def may_skip(transform: Any) -> bool:
    """Whether a transform may skip steps or end training; one that does not say may."""
    return bool(getattr(transform, "may_skip", True))


def needs_of(transform: Any) -> frozenset[str]:
    """Return what a transform needs beside the gradients."""
    return frozenset(getattr(transform, "needs", ()))


def settle(transform: Any, before: State, after: State, skipped: torch.Tensor | None) -> State:
    """Return the state to go on with, once it is known whether the step is skipped."""
    if skipped is None:
        return after
    own = getattr(transform, "settle", None)
    result: State = select(skipped, before, after) if own is None else own(before, after, skipped)
    return result
