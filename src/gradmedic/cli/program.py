"""What the user wants to run, and how python would start it: a file, a module, a folder or zip, or stdin.

Python starts a module, a folder and a zip through `runpy._run_module_as_main`, which works on whatever module is
`__main__`; we call the same function on a fresh one, so that errors, attributes and tracebacks are python's own. A file
and stdin are started in C; `_start_file` follows `_PyRun_SimpleFileObject`.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import types
from dataclasses import dataclass
from typing import Any, Literal

from gradmedic.errors import InputError
from gradmedic.plain_text import plain

Kind = Literal["file", "module", "container", "stdin"]


@dataclass(frozen=True)
class Program:
    """A program and its arguments; `target` is a path, a module's name, or "-"."""

    kind: Kind
    target: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name for folders: "train" for `exp/train.py`, "pkg.train" for `-m pkg.train`."""
        if self.kind == "stdin":
            return "stdin"
        if self.kind == "module":
            return self.target
        return os.path.splitext(os.path.basename(os.path.abspath(self.target)))[0] or "run"

    @property
    def label(self) -> str:
        """What messages call it: "train.py" for `exp/train.py`, "pkg.train" for `-m pkg.train`."""
        if self.kind in ("stdin", "module"):
            return self.name
        return plain(os.path.basename(os.path.abspath(self.target))) or self.name


def parse_program(words: list[str]) -> Program:
    """Return the program that the words after our own options name.

    Raises:
        InputError: when there is none, or the file cannot be opened; the message is the one that python prints.
    """
    if not words:
        raise InputError("expected a script to run, got none; for example: gradmedic run train.py")
    first, rest = words[0], tuple(words[1:])
    if first == "-":
        return Program("stdin", "-", rest)
    if first.startswith("-m"):
        name, arguments = (first[2:], rest) if len(first) > 2 else ("".join(rest[:1]), rest[1:])
        if not name:
            raise InputError("expected a module's name after -m, got none; for example: gradmedic run -m package.train")
        return Program("module", name, arguments)
    path = os.path.abspath(first)
    if pkgutil.get_importer(path) is not None:
        return Program("container", first, rest)
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}") from None
    return Program("file", first, rest)


def prepare(program: Program, own_arguments: int) -> types.ModuleType:
    """Make the interpreter look as python leaves it when it starts `program`; return the fresh `__main__`.

    Args:
        program: what will run.
        own_arguments: how many words of the command line follow the name of gradmedic itself.
    """
    main = _fresh_main()
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main
    first = "-m" if program.kind == "module" else program.target
    sys.argv[:] = [first, *program.arguments]
    _replace_path0(program)
    _replace_orig_argv(program, own_arguments)
    return main


def start(program: Program, main: types.ModuleType) -> None:
    """Run `program` in `main`; whatever it raises comes out."""
    if program.kind == "module":
        _run_module_as_main(program.target, True)
    elif program.kind == "container":
        _run_module_as_main("__main__", False)
    elif program.kind == "stdin":
        _start_stdin(main)
    else:
        _start_file(os.path.abspath(program.target), main)


def _run_module_as_main(name: str, alter_argv: bool) -> None:
    run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    run(name, alter_argv)


def _fresh_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    main.__loader__ = importlib.machinery.BuiltinImporter
    # Until 3.13 the C code that makes `__main__` gives it an empty dictionary of annotations.
    if "__annotations__" in vars(sys.modules["__main__"]):
        main.__annotations__ = {}
    return main


def _replace_path0(program: Program) -> None:
    """Exchange the entry that python made for gradmedic for the one that it would have made for the program."""
    safe = bool(getattr(sys.flags, "safe_path", False)) or bool(sys.flags.isolated)
    if program.kind == "container":
        entry = os.path.abspath(program.target)
    elif program.kind == "module":
        entry = os.getcwd()
    elif program.kind == "stdin":
        entry = ""
    else:
        entry = os.path.dirname(os.path.realpath(program.target))
    if not safe:
        sys.path[0] = entry
    elif program.kind == "container":
        sys.path.insert(0, entry)


def _replace_orig_argv(program: Program, own_arguments: int) -> None:
    original = sys.orig_argv
    head = original[: len(original) - own_arguments]
    head = head[:-2] if head[-2:-1] == ["-m"] else head[:-1]
    start_words = ["-m", program.target] if program.kind == "module" else [program.target]
    sys.orig_argv = [*head, *start_words, *program.arguments]


def _start_file(path: str, main: types.ModuleType) -> None:
    main.__file__ = path
    main.__dict__["__cached__"] = None
    magic = importlib.util.MAGIC_NUMBER
    with io.open_code(path) as file:
        source = file.read()
    if source[: len(magic)] == magic or path.endswith(".pyc"):
        if source[: len(magic)] != magic:
            raise RuntimeError("Bad magic number in .pyc file")
        main.__loader__ = importlib.machinery.SourcelessFileLoader("__main__", path)
        code = main.__loader__.get_code("__main__")
    else:
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        code = compile(source, path, "exec", dont_inherit=True)
    assert code is not None
    exec(code, main.__dict__)


def _start_stdin(main: types.ModuleType) -> None:
    main.__file__ = "<stdin>"
    main.__dict__["__cached__"] = None
    source = sys.stdin.buffer.read()
    exec(compile(source, "<stdin>", "exec", dont_inherit=True), main.__dict__)
