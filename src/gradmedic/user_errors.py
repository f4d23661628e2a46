"""What to say where an object of the user's own raised: whose it is, and where in the user's file."""

from __future__ import annotations

import sys
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType

#: Packages whose frames are nobody's own code.
_OURS = frozenset({"gradmedic", "torch", "numpy", "pyarrow"}) | sys.stdlib_module_names - {"__main__"}


def trouble_of(error: Exception) -> str | None:
    """Return in words that something of the user's own raised, so that nobody looks for the fault in gradmedic.

    Args:
        error: what was raised, and caught in gradmedic.

    Returns:
        "Cap in train.py, line 12, raised ValueError: …", by the class of the object that was called, or the name of the
        function, and the last place in the user's code; None where only gradmedic and what it builds upon took part.

    Example:
        >>> trouble_of(ValueError("never raised")) is None
        True
    """
    theirs = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_ours(frame)]
    if not theirs:
        return None
    called, (last, line) = theirs[0][0], theirs[-1]
    owner = called.f_locals.get("self")
    name = _function(called.f_code) if owner is None else type(owner).__name__
    return f"{name} in {Path(last.f_code.co_filename).name}, line {line}, raised {type(error).__name__}: {error}"


def _is_ours(frame: FrameType) -> bool:
    return _root(str(frame.f_globals.get("__name__", ""))) in _OURS


def _root(module: str) -> str:
    return module.partition(".")[0]


def _function(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))  # qualified from Python 3.11 on
