"""`gradmedic top`: a run as it trains, in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gradmedic.cli.command import FINE, add_language


class TopCommand:
    """Shows a run live."""

    summary = "watch a run in the terminal as it trains"
    example = (
        "example: gradmedic top runs/exp1\n\n"
        "keys: q quit, s sort, f filter, p pause, arrows and page keys scroll, n newer run.\n"
        "RUN may be a folder that holds runs (the newest is taken, and one that begins later when it has ended), or\n"
        "one that is not there yet.\n"
        "Without a terminal, or with --once, the state is printed once."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("run", metavar="RUN", help="run folder")
        parser.add_argument(
            "--interval", type=_interval, default=1.0, metavar="SECONDS", help="between two looks (default: 1)"
        )
        parser.add_argument("--once", action="store_true", help="print the state once and end")
        parser.add_argument("--ascii", action="store_true", help="no signs beyond ASCII")
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Show the run until q is pressed."""
        from rich.console import Console

        from gradmedic.top.app import end_by, show_once, watch_run
        from gradmedic.top.glyphs import ASCII

        path = Path(args.run)
        glyphs = ASCII if args.ascii else None
        term = os.environ.get("TERM", "")
        # The kinds of terminals before colour; rich takes any that it does not know for one of 16 colours.
        console = Console(file=sys.stdout, no_color=True if term.startswith("vt") else None)
        if args.once or not sys.stdout.isatty() or term in ("", "dumb", "unknown"):
            show_once(path, console, lang=args.lang, glyphs=glyphs)
            return FINE
        ended_by = watch_run(path, console, lang=args.lang, interval=args.interval, glyphs=glyphs)
        if ended_by is not None:
            end_by(ended_by)
        return FINE


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds between 0.05 and 3600, not {text!r}")
    return value
