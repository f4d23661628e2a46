"""`gradmedic diagnose`: the findings of a run folder."""

from __future__ import annotations

import argparse
import sys

from gradmedic.cli.command import FINE, FOUND, add_fail_on, add_language, chosen_by_option, reaches
from gradmedic.cli.run_folder import run_folder
from gradmedic.cli.session import examine

FORMATS = ("text", "json", "markdown")


class DiagnoseCommand:
    """Judges a recorded run."""

    summary = "say what is wrong with a recorded run"
    example = "example: gradmedic diagnose runs/exp1 --format json --fail-on error"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("run", metavar="RUN", help="run folder, or one that holds several (the newest is taken)")
        parser.add_argument("--format", choices=FORMATS, default="text", help="how to write it (default: text)")
        add_fail_on(parser)
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Print the findings; return 1 when they reach `--fail-on`."""
        run, findings = examine(run_folder(args.run, args.lang), args.lang)
        if args.format == "text":
            from rich.console import Console

            from gradmedic.report.text import render_checkup

            console = Console(file=sys.stdout)
            render_checkup(run, findings, lang=args.lang, console=console, name_lang=chosen_by_option(args.lang))
        else:
            from gradmedic.report.text import render_findings

            print(render_findings(findings, format=args.format, run=run, lang=args.lang).rstrip("\n"))
        return FOUND if reaches(findings, args.fail_on) else FINE
