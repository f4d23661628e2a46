"""What to say where an object of the user's own raised, or gave back what is of no use: whose it is, and where."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

from gradmedic.errors import InputError

#: Packages whose frames are nobody's own code.
_OURS = frozenset({"gradmedic", "torch", "numpy", "pyarrow"}) | sys.stdlib_module_names - {"__main__"}


class WrongAnswer(InputError):
    """Something of the user's own has given back what cannot be used.

    Args:
        asked: the method or function that has given it back.
        owner: its object, which goes by its class; None: a function by itself.
        what: what came and what was expected, as it goes on after the name and the place: "returned …; expected …".
    """

    def __init__(self, asked: Any, owner: Any, what: str) -> None:
        code: CodeType | None = getattr(inspect.unwrap(asked), "__code__", None)
        if owner is None:
            name = getattr(asked, "__qualname__", type(asked).__name__) if code is None else _function(code)
        else:
            name = type(owner).__name__
        place = "" if code is None else f" in {Path(code.co_filename).name}, line {code.co_firstlineno},"
        super().__init__(f"{name}{place} {what}")


def trouble_of(error: Exception) -> str | None:
    """Return in words that something of the user's own raised, so that nobody looks for the fault in gradmedic.

    Args:
        error: what was raised, and caught in gradmedic.

    Returns:
        "Cap in train.py, line 12, raised ValueError: …", by the class of the object that was called, or the name of the
        function, and the last place in the user's code ("Cap in train.py, line 9, returned None; …", by where it was
        defined, for a `WrongAnswer`); None where only gradmedic and what it builds upon took part.

    Example:
        >>> trouble_of(ValueError("never raised")) is None
        True
    """
    if isinstance(error, WrongAnswer):
        return str(error)
    theirs = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_ours(frame)]
    if not theirs:
        return None
    called, (last, line) = theirs[0][0], theirs[-1]
    owner = called.f_locals.get("self")
    name = _function(called.f_code) if owner is None else type(owner).__name__
    return f"{name} in {Path(last.f_code.co_filename).name}, line {line}, raised {type(error).__name__}: {error}"


def is_users(kind: type, method: str) -> bool:
    """Whether a method of a class is code of the user's own, rather than gradmedic's."""
    module = getattr(getattr(kind, method, kind), "__module__", None) or kind.__module__
    return not str(module).startswith("gradmedic.")


def _is_ours(frame: FrameType) -> bool:
    return _root(str(frame.f_globals.get("__name__", ""))) in _OURS


def _root(module: str) -> str:
    return module.partition(".")[0]


def _function(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))  # qualified from Python 3.11 on
