"""Which steps are recorded in full: `every` as a callable, and escalation after a trigger."""

from __future__ import annotations

from collections.abc import Callable

from gradmedic.errors import InputError

StepSchedule = Callable[[int], bool]


def every(interval: int | StepSchedule) -> StepSchedule:
    """Return `step -> bool` for an interval in optimizer steps, or check the callable that was given.

    Args:
        interval: 1 for every step, n for steps 0, n, 2n, …; or a callable of the step.

    Raises:
        InputError: if it is neither a positive int nor callable.

    Example:
        >>> [step for step in range(7) if every(3)(step)]
        [0, 3, 6]
    """
    if callable(interval):
        return interval
    if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
        raise InputError(
            f"every: expected a positive number of steps or a callable step -> bool, got {interval!r}; "
            "every=1 records each step, every=10 each tenth"
        )
    return lambda step: step % interval == 0


#: Steps after trouble on which modules are probed as well.
_RECENT = 2


class Escalation:
    """A schedule that records everything for some steps after trouble was seen."""

    def __init__(self, schedule: StepSchedule, steps: int = 64) -> None:
        self._schedule = schedule
        self._steps = steps
        self._until = -1

    @property
    def base(self) -> StepSchedule:
        """The schedule without what trouble adds to it."""
        return self._schedule

    def trigger(self, step: int) -> None:
        """Record in full from `step` on, for the set number of steps."""
        self._until = max(self._until, step + self._steps)

    def recent(self, step: int) -> bool:
        """Whether trouble was seen at the step before `step`, or just before that."""
        return self._until >= 0 and step - (self._until - self._steps) <= _RECENT

    def escalated(self, step: int) -> bool:
        """Whether trouble at or before `step` has asked for it, whatever the schedule says."""
        return step <= self._until

    def __call__(self, step: int) -> bool:
        return self.escalated(step) or bool(self._schedule(step))
