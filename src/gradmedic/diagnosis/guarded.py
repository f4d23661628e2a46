"""Whether a guard has dealt with a step already: nobody is then told to take one."""

from __future__ import annotations

from gradmedic.frame import Frame

#: Why steps are skipped where no guard did it: a gradient scaler, or nobody says.
_NOT_BY_GUARDS = (None, "", "non-finite gradients under the loss scale")


def guarded(frame: Frame) -> str:
    """Return "yes" for a step that a guard has skipped, else ""; for the `unless` of a remedy."""
    return "yes" if frame.skipped and frame.skip_reason not in _NOT_BY_GUARDS else ""
