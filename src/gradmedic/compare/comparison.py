"""What a comparison says, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from gradmedic.diagnosis.finding import Finding

Section = Literal["environment", "command", "settings", "optimizer", "model"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that was set differently; None where a run has nothing of it."""

    section: Section
    key: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first step at which a recorded number is not the same to the last bit.

    Attributes:
        step: its index.
        columns: scalars that differ there, each as (name, value in A, value in B); None where nothing is known.
        tensors: the first tensors to differ, in execution order; `tensor_step` when. Empty and None where no common
            tensor table differs.
    """

    step: int
    columns: tuple[tuple[str, float | None, float | None], ...]
    tensors: tuple[str, ...] = ()
    tensor_step: int | None = None


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step from which a curve differs by more than the tolerance, and goes on to.

    Attributes:
        column: "loss" or "grad_norm" (pre-clip).
        step: its index.
        a, b: the values there; at most one of them is not finite.
    """

    column: str
    step: int
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Phase:
    """Medians over a third of the common steps: [first, last] of them, loss and pre-clip norm in A and in B.

    Steps that were skipped are left out.
    """

    first: int
    last: int
    loss: tuple[float | None, float | None]
    grad_norm: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Course:
    """How one optimizer went in both runs.

    Attributes:
        a, b: its names.
        steps: recorded steps in A, in B, and in both.
        last_common: index of the last step that both have; None when there is none.
        identical: whether every recorded number of the common steps is the same, times left out.
        first_difference: where they first differ at all; None when identical.
        partings: where they differ by more than the tolerance, for good; at most one for each curve.
        phases: early, middle and late; empty without common steps.
        clipped, skipped: shares of steps in A and in B.
        lost: (curve, step) from which on neither run has a finite value; for the curves that end so.
        skipped_alone: (number, first) of the common steps that A skipped and B did not, and the other way round; ()
            where there is none.
    """

    a: str
    b: str
    steps: tuple[int, int, int]
    last_common: int | None
    identical: bool
    first_difference: FirstDifference | None
    partings: tuple[Parting, ...]
    phases: tuple[Phase, ...]
    clipped: tuple[float, float]
    skipped: tuple[float, float]
    skipped_alone: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    lost: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """How a tensor's pre-clip norm in B compares with that in A over the common recorded steps.

    Attributes:
        name: the tensor.
        log2_ratio: median of log2(norm in B / norm in A); infinite where it is zero in one of them at most steps, NaN
            (not known) without a step at which both are finite.
        a, b: median norms over the steps at which both are finite; without any, each over its own finite ones, and NaN
            where it has none.
        steps: how many steps the ratio is taken over.
        nonfinite: share of the steps at which its gradient was not finite, in A and in B.
    """

    name: str
    log2_ratio: float
    a: float
    b: float
    steps: int
    nonfinite: tuple[float, float]

    @property
    def distance(self) -> float:
        """How far apart they are, >= 0: |log2_ratio|; infinite where that is not known."""
        return math.inf if math.isnan(self.log2_ratio) else abs(self.log2_ratio)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run cost: median seconds of a step, gradmedic's share of them, seconds from first to last step."""

    step_seconds: float | None
    overhead: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, A and B.

    Attributes:
        a, b: their names (of the folders; "A", "B" in memory).
        tolerance: relative difference that counts as parting; `sustained` for so many steps.
        differences: what was set differently.
        courses: of the optimizers that both have, in order.
        only_a, only_b: optimizers without a counterpart.
        layers: tensors of both, those that differ most first.
        tensors: how many tensors with a recorded gradient are in A only, in B only, and in both.
        findings_a, findings_b: findings that only one of them has, consequences included.
        findings_both: (code, title, first step in A, in B) of those that both have.
        costs: of A and of B.
        problems: what could not be read of A and of B.
    """

    a: str
    b: str
    tolerance: float
    sustained: int
    differences: tuple[Difference, ...]
    courses: tuple[Course, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    layers: tuple[LayerDifference, ...]
    tensors: tuple[int, int, int]
    findings_a: tuple[Finding, ...]
    findings_b: tuple[Finding, ...]
    findings_both: tuple[tuple[str, str, int, int], ...]
    costs: tuple[Cost, Cost]
    problems: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def identical(self) -> bool:
        """Whether every recorded number of all common steps is the same, and there are common steps."""
        return bool(self.courses) and all(course.identical and course.steps[2] for course in self.courses)

    def to_json(self) -> dict[str, Any]:
        """Return a strict-JSON mapping; numbers that are not finite become "NaN", "Infinity" or "-Infinity"."""
        data: dict[str, Any] = _plain(self)
        return {**data, "identical": self.identical}


def _plain(value: Any) -> Any:
    if isinstance(value, Finding):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
