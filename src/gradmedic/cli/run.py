"""`gradmedic run`: a script under watch, otherwise as `python script.py` would run it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from pathlib import Path

from gradmedic.cli import checkup, program, sink_options, tracebacks
from gradmedic.cli.children import leave_children, reach_children
from gradmedic.cli.command import FINE, FOUND, USAGE_ERROR, add_fail_on, add_language, complain, reaches
from gradmedic.cli.folders import check_possible, claim, default_folder, rank_of
from gradmedic.cli.limit_names import unmatched_limits
from gradmedic.cli.options import RunOptions, parse_limits, parse_modules
from gradmedic.cli.session import Session, make_transform
from gradmedic.errors import InputError, TrainingHalted, TransformError

DEFAULT_BUDGET = "256MB"


class RunCommand:
    """Runs a script under watch."""

    summary = "run an unmodified script under watch, faithful to `python SCRIPT`"
    example = (
        "examples:\n"
        "  gradmedic run train.py --epochs 3\n"
        "  gradmedic run --steps 100 --fail-on error -m package.train\n"
        '  gradmedic run --clip "zclip()" --record runs/clipped train.py\n'
        "  gradmedic run --guard train.py\n"
        "Options of gradmedic come before the script; everything after it belongs to the script."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.usage = "gradmedic run [OPTIONS] (SCRIPT | -m MODULE | -) [ARGS ...]"
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--record", metavar="DIR", help="run folder (default: runs/SCRIPT-DATE-TIME)")
        where.add_argument("--no-record", action="store_true", help="keep the record in memory; leave no folder")
        parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
        parser.add_argument("--every", type=_positive, default=1, metavar="N", help="full tables every N steps")
        parser.add_argument("--steps", type=_positive, metavar="N", help="end after N optimizer steps, with code 0")
        parser.add_argument(
            "--modules",
            action="append",
            default=[],
            metavar="PATTERN",
            help="which modules are probed for activations: names with *, auto (default), off",
        )
        parser.add_argument(
            "--clip",
            metavar="SPEC",
            help='clip gradients: 1.0, "zclip()", "chain(...)" (docs/clipping.md)',
        )
        parser.add_argument(
            "--guard",
            action="store_true",
            help="skip steps that would ruin the weights, and clip: zclip, then norm(1.0), or what --clip says",
        )
        parser.add_argument(
            "--limit", action="append", default=[], metavar="[PATTERN=]NORM", help="alarm above a gradient norm"
        )
        parser.add_argument(
            "--budget", default=DEFAULT_BUDGET, metavar="SIZE", help="bound on the folder (default: 256MB)"
        )
        parser.add_argument(
            "--probe",
            action="store_true",
            help="at the second and the last step, make small experiments on a copy of the weights (docs/recipes.md)",
        )
        parser.add_argument(
            "--sink",
            action="append",
            default=[],
            metavar="KIND[:TARGET]",
            help=f"where live numbers also go, may be repeated: {sink_options.described()} (docs/sinks.md)",
        )
        add_fail_on(parser)
        parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
        add_language(parser)

    @staticmethod
    def split(words: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
        """Return (our options, the program with its arguments).

        argparse's own REMAINDER gives up options of the script that look like ours; the first word that is neither an
        option nor an option's value is the program, and everything after it is the program's.
        """
        takes_value = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
        at = 0
        while at < len(words):
            word = words[at]
            if word == "--":
                return words[:at], words[at + 1 :]
            if word == "-" or not word.startswith("-") or (word.startswith("-m") and not word.startswith("--")):
                break
            at += 2 if takes_value.get(word, False) else 1
        return words[:at], words[at:]

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Run the program; return its exit code, or 1 when findings reach `--fail-on`."""
        target = program.parse_program(args.program)
        options = _options(args, target)
        session = Session(options, make_transform(options))
        own_arguments = len(sys.argv) - 1
        main = program.prepare(target, own_arguments)
        reach_children(options, os.environ)
        tracebacks.clean_threads()
        session.begin()
        code, error = _execute(target, main)
        session.close(error)
        if not session.is_copy and not isinstance(error, TransformError):
            code = _conclude(session, target, code)
        if isinstance(error, KeyboardInterrupt):
            # Python ends by SIGINT after an uncaught KeyboardInterrupt; its traceback has been shown already.
            sys.excepthook = lambda *_: None
            raise KeyboardInterrupt
        return code


def _execute(target: program.Program, main: object) -> tuple[int, BaseException | None]:
    """Run the program to its end, threads included; return (exit code, what ended it, None if it came to its end)."""
    code: int = FINE
    ended: BaseException | None = None
    try:
        program.start(target, main)  # type: ignore[arg-type]
    except SystemExit as end:
        code = _exit_code(end)
        ended = SystemExit(code)  # a new one: the traceback of the old one holds the script's frames
    except TransformError as error:
        complain(str(error))
        code, ended = USAGE_ERROR, error
    except TrainingHalted as error:
        complain(f"training is halted at {error}")
        code, ended = 1, error
    except BaseException as error:
        code, ended = 1, error
        try:
            tracebacks.show_uncaught(error)
        except SystemExit as end:
            code = _exit_code(end)
            ended = SystemExit(code)
    _flush()
    try:
        _wait_for_threads()
    except KeyboardInterrupt as error:
        tracebacks.show_uncaught(error)
        ended = error
    _flush()
    return code, ended


def _exit_code(end: SystemExit) -> int:
    """Return the code of `sys.exit(...)` as python reads it; a message is printed and means 1."""
    if end.code is None:
        return FINE
    if isinstance(end.code, int):
        return int(end.code)
    _flush()
    print(end.code, file=sys.stderr)
    return 1


def _wait_for_threads() -> None:
    """Wait for the threads that the script left running, which python does before it ends."""
    own = threading.main_thread(), threading.current_thread()
    if any(not thread.daemon and thread not in own for thread in threading.enumerate()):
        # Joining them one by one would wait for ever for idle executors, which end only when python says so.
        getattr(threading, "_shutdown", lambda: None)()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _conclude(session: Session, target: program.Program, code: int) -> int:
    """Show the check-up of the record, which is closed; return the exit code."""
    leave_children(os.environ)
    try:
        if not session.trained:
            checkup.show_untrained(session, target.label)
            return code
        run, findings = session.result()
        checkup.show(session, run, findings)
        if not session.options.quiet:
            for sentence in unmatched_limits(session.options.limits, run, session.options.lang):
                complain(sentence)
    except Exception as error:
        complain(f"no check-up: {error or type(error).__name__}")
        return code
    return FOUND if code == FINE and reaches(findings, session.options.fail_on) else code


def _options(args: argparse.Namespace, target: program.Program) -> RunOptions:
    """Check the options and settle the run folder, before anything is run."""
    rank, _ = rank_of(os.environ)
    sink_options.make_sinks(args.sink)  # an unknown kind is said before anything runs
    if args.budget != DEFAULT_BUDGET:  # only then: reading it imports what records
        from gradmedic.record.budget import parse_budget

        parse_budget(args.budget)
    if args.no_record:
        record = None
    elif args.record is not None:
        record = Path(args.record)
        if not args.record.strip():
            raise InputError("--record expects a folder, got an empty name")
        if rank == 0:
            claim(record, overwrite=args.overwrite)
    else:
        record = default_folder(target.name, os.environ)
        if rank == 0 and not record.is_dir():
            check_possible(record)
    return RunOptions(
        record=None if record is None else str(record.absolute()),
        every=args.every,
        steps=args.steps,
        modules=parse_modules(args.modules),
        clip=args.clip,
        guard=args.guard,
        limits=parse_limits(args.limit),
        budget=args.budget,
        lang=args.lang,
        fail_on=args.fail_on,
        quiet=args.quiet or rank != 0,
        probe=args.probe,
        sinks=args.sink,
        sink_claim=sink_options.new_claim() if args.sink else None,
    )


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number
