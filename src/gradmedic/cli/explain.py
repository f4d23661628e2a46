"""`gradmedic explain`: what a finding's code means."""

from __future__ import annotations

import argparse

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
        """Print the explanation, or the table of codes."""
        from gradmedic.report.explain import explain

        print(explain(args.code, args.lang).rstrip("\n"))
        return FINE
