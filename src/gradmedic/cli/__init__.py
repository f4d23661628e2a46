"""The command line: one file per command.

Nothing here imports torch (or anything that does) before the user's script has had the chance to set environment
variables that torch reads when it is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from gradmedic import __version__
from gradmedic.cli.clip import ClipCommand
from gradmedic.cli.command import INTERRUPTED, USAGE_ERROR, Command, complain
from gradmedic.cli.compare import CompareCommand
from gradmedic.cli.demo import DemoCommand
from gradmedic.cli.diagnose import DiagnoseCommand
from gradmedic.cli.env import EnvCommand
from gradmedic.cli.explain import ExplainCommand
from gradmedic.cli.export import ExportCommand
from gradmedic.cli.report import ReportCommand
from gradmedic.cli.run import RunCommand
from gradmedic.cli.serve import ServeCommand
from gradmedic.cli.top import TopCommand
from gradmedic.errors import InputError

COMMANDS: dict[str, Command] = {
    "run": RunCommand(),
    "diagnose": DiagnoseCommand(),
    "report": ReportCommand(),
    "top": TopCommand(),
    "serve": ServeCommand(),
    "compare": CompareCommand(),
    "export": ExportCommand(),
    "clip": ClipCommand(),
    "explain": ExplainCommand(),
    "env": EnvCommand(),
    "demo": DemoCommand(),
}


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the whole parser and the parsers of the commands by name."""
    parser = argparse.ArgumentParser(
        prog="gradmedic",
        description="Watches a PyTorch training run, says what is wrong with it, and treats it.",
        epilog="example: gradmedic run train.py --epochs 3",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gradmedic {__version__}")
    kinds = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, command in COMMANDS.items():
        parsers[name] = kinds.add_parser(
            name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=command.example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.prepare_parser(parsers[name])
    return parser, parsers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the program's name; those of the process by default.

    Returns:
        0 when all is well, 1 when findings reach `--fail-on`, 2 for a usage or input error; `run` otherwise returns
        the script's own code.

    Raises:
        SystemExit: from argparse, for `--help`, `--version` and usage errors.
        KeyboardInterrupt: when the script ended by it, so that the process ends by SIGINT as under `python script.py`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser, parsers = build_parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        parser.error(_no_such_command(arguments[0]))
    program: list[str] = []
    if arguments[:1] == ["run"]:
        own, program = RunCommand.split(arguments[1:], parsers["run"])
        arguments = ["run", *own]
    args, unknown = parser.parse_known_args(arguments)
    if unknown:  # argparse itself would show the usage of the whole program
        parsers[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    args.program = program
    if args.command != "run":
        _never_fail_to_print()
    try:
        return COMMANDS[args.command].run(args, parsers[args.command])
    except InputError as error:
        complain(str(error))
        return USAGE_ERROR
    except KeyboardInterrupt:
        if args.command == "run":  # the script's own affair
            raise
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (a pager, `head`) has gone: there is nobody left to tell.
        sys.stderr.close()
        return 0


def _no_such_command(word: str) -> str:
    """Return what is said of a first word that is no command."""
    if word.endswith(".py"):
        return f"there is no command {word!r}; did you mean: gradmedic run {word}"
    near = get_close_matches(word.lower(), COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}"
    return f"there is no command {word!r}; {hint}"


def _never_fail_to_print() -> None:
    """Have what a terminal's encoding lacks printed as a question mark, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):  # closed, or on something that is not quite a file
                stream.reconfigure(errors="replace")
