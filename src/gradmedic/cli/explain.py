"""`gradmedic explain`: what a finding's code means."""

from __future__ import annotations

import argparse
import sys

from gradmedic.cli.command import FINE, add_language


class ExplainCommand:
    """Explains a code, or lists all."""

    summary = "explain the code of a finding; without a code, list all"
    example = "example: gradmedic explain GM201"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("code", metavar="CODE", nargs="?", help="for example GM201")
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Print the explanation, or the table of codes: set for a terminal, as Markdown for a file or a pipe."""
        from rich.console import Console

        from gradmedic.report.explain import explain

        page = explain(args.code, args.lang).rstrip("\n")
        console = Console(file=sys.stdout)
        if console.is_terminal:
            from rich.markdown import Markdown

            console.print(Markdown(page))
        else:
            print(page)
        return FINE
