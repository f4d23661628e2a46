"""`gradmedic clip`: what several ways of clipping would have done to a recorded run."""

from __future__ import annotations

import argparse
import sys

from gradmedic.cli.command import FINE, add_language
from gradmedic.cli.run_folder import run_folder
from gradmedic.errors import InputError

FORMATS = ("text", "json")


class ClipCommand:
    """Advises on clipping, from the recorded norms."""

    summary = "say what clipping would have done to a recorded run, and which to take"
    example = "example: gradmedic clip runs/exp1"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("run", metavar="RUN", help="run folder, or one that holds several (the newest is taken)")
        parser.add_argument("--format", choices=FORMATS, default="text", help="how to write it (default: text)")
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Print the advice."""
        from gradmedic.record import open_run

        run = open_run(run_folder(args.run, args.lang))
        if run.problems and not run.steps.num_rows:
            raise InputError(f"{args.run} holds no readable run: {run.problems[0]}")
        advice = run.clip_advice()
        if args.format == "json":
            from gradmedic.report.clip_text import clip_advice_json

            print(clip_advice_json(advice, args.lang))
        else:
            from rich.console import Console

            from gradmedic.report.clip_text import render_clip_advice

            render_clip_advice(advice, lang=args.lang, console=Console(file=sys.stdout))
        return FINE
