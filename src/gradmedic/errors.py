"""The exceptions that users of gradmedic meet.

::

    GradmedicError
    ├── InputError (also a ValueError)   an argument or a file is not what was expected
    │   └── TransformError               a transform does not fit what it is to treat
    └── TrainingHalted                   a guard has stopped the training

Every message says what was expected, what came, and how to mend it.
"""

from __future__ import annotations


class GradmedicError(Exception):
    """Base of every exception that gradmedic raises on purpose."""


class InputError(GradmedicError, ValueError):
    """An argument, a script or a run folder is not what was expected; the message says how to mend it."""


class TransformError(InputError):
    """A transform does not fit the model or the optimizer that it is to treat; said before a weight has changed."""


class TrainingHalted(GradmedicError):
    """A guard has stopped the training: the step was not made, and the record holds everything up to it."""


#: What is raised into the training loop on purpose; everything else is isolated.
MEANT_FOR_HOST = (TrainingHalted, TransformError)
