"""`gradmedic compare`: two recorded runs side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gradmedic.cli.command import FINE, add_language, say
from gradmedic.cli.outputs import check_output, write_output
from gradmedic.cli.run_folder import run_folder
from gradmedic.errors import InputError

if TYPE_CHECKING:
    from gradmedic.compare.comparison import Comparison
    from gradmedic.record import Run

FORMATS = ("text", "markdown", "json", "html")


class CompareCommand:
    """Compares two recorded runs."""

    summary = "compare two recorded runs: what was set differently, and where they part"
    example = (
        "example: gradmedic compare runs/exp1 runs/exp2\n         gradmedic compare runs/exp1 runs/exp2 -o both.html"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("a", metavar="A", help="run folder, or one that holds several (the newest is taken)")
        parser.add_argument("b", metavar="B", help="run folder")
        parser.add_argument(
            "--format", choices=FORMATS, help="how to write it (default: by the suffix of FILE, else text)"
        )
        parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: standard output)")
        parser.add_argument(
            "--tolerance",
            type=float,
            default=0.05,
            metavar="SHARE",
            help="curves part where they differ by more than this share for 10 steps in a row (default: 0.05)",
        )
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Write the comparison."""
        from gradmedic.compare.job import compare_runs
        from gradmedic.record import open_run

        form = args.format or _form_of(args.output)
        if form == "html" and args.output is None:
            raise InputError("a page is some 5 MB: name a file with -o FILE")
        args.a, args.b = (run_folder(each, args.lang) for each in (args.a, args.b))
        file = Path() if args.output is None else check_output(args.output, [args.a, args.b])
        a, b = open_run(args.a), open_run(args.b)
        comparison = compare_runs(a, b, tolerance=args.tolerance, lang=args.lang)
        if form == "text" and args.output is None:
            from rich.console import Console

            from gradmedic.compare.rendering import render_text

            render_text(comparison, lang=args.lang, console=Console(file=sys.stdout))
            return FINE
        text = _rendered(form, comparison, a, b, args.lang)
        if args.output is None:
            print(text.rstrip("\n"))
        else:
            write_output(file, text)
            say(f"gradmedic: {args.output}")
        return FINE


def _form_of(output: str | None) -> str:
    suffixes = {".html": "html", ".htm": "html", ".json": "json", ".md": "markdown"}
    return suffixes.get(Path(output).suffix.lower(), "text") if output else "text"


def _rendered(form: str, comparison: Comparison, a: Run, b: Run, lang: str) -> str:
    from gradmedic.compare import rendering
    from gradmedic.compare.page import render_compared_page

    if form == "html":
        return render_compared_page(comparison, a, b, lang=lang)
    if form == "json":
        return rendering.render_json(comparison) + "\n"
    if form == "markdown":
        return rendering.render_markdown(comparison, lang=lang)
    return rendering.render_text(comparison, lang=lang)
