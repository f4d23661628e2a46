"""Tracebacks as they would be without gradmedic: frames of files in its package are left out."""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

import gradmedic

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(gradmedic.__file__)), "")


def is_ours(filename: str) -> bool:
    """Return whether a code object's file name lies in this package."""
    return filename.startswith(_PACKAGE)


def without_ours(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without our frames; the given one is left as it is."""
    kept: list[types.TracebackType] = []
    found = False
    while traceback is not None:
        if is_ours(traceback.tb_frame.f_code.co_filename):
            found = True
        else:
            kept.append(traceback)
        traceback = traceback.tb_next
    if not found:
        return kept[0] if kept else None
    result: types.TracebackType | None = None
    for entry in reversed(kept):
        result = types.TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def clean(error: BaseException) -> BaseException:
    """Take our frames out of an exception, of what it was raised from or while, and of those that it groups."""
    waiting: list[BaseException] = [error]
    done: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) in done:
            continue
        done.add(id(current))
        current.__traceback__ = without_ours(current.__traceback__)
        linked: list[Any] = [current.__cause__, current.__context__]
        grouped = getattr(current, "exceptions", ())
        linked += grouped if isinstance(grouped, tuple) else ()
        waiting += [entry for entry in linked if isinstance(entry, BaseException)]
    return error


def show_uncaught(error: BaseException) -> None:
    """Do with an exception that has left the script what python does: `sys.last_*`, then `sys.excepthook`."""
    clean(error)
    kind, traceback = type(error), error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        print("sys.excepthook is missing", file=sys.stderr)
        hook = sys.__excepthook__
    try:
        hook(kind, error, traceback)
    except SystemExit:
        raise
    except BaseException as failure:
        print("Error in sys.excepthook:", file=sys.stderr)
        failure.__context__ = None
        clean(failure)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, traceback)


def clean_threads() -> None:
    """Take our frames out of what `threading.excepthook` prints; a hook that the script sets later is left alone."""
    present = threading.excepthook

    def excepthook(args: Any, /) -> None:
        if args.exc_value is not None:
            clean(args.exc_value)
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread))
        present(args)

    threading.excepthook = excepthook


def clean_main() -> None:
    """Wrap `sys.excepthook` likewise: for processes that python itself, not `gradmedic run`, has started."""
    present = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
        if error is not None:
            traceback = clean(error).__traceback__
        present(kind, error, traceback)

    sys.excepthook = excepthook
