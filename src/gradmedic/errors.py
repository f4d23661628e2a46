"""The exceptions that users of gradmedic meet.

::

    GradmedicError
    ├── InputError (also a ValueError)   an argument or a file is not what was expected
    └── TrainingHalted                   a breaker asked for the run to stop

Every message says what was expected, what came, and how to mend it.
"""

from __future__ import annotations


class GradmedicError(Exception):
    """Base of every exception that gradmedic raises on purpose."""


class InputError(GradmedicError, ValueError):
    """An argument, a script or a run folder is not what was expected; the message says how to mend it."""


class TrainingHalted(GradmedicError):
    """A guard has stopped the training run; the run folder is closed and complete."""
