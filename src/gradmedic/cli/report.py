"""`gradmedic report`: one self-contained HTML page of one or more runs."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradmedic.cli.command import FINE, add_language
from gradmedic.cli.outputs import check_output, write_output
from gradmedic.cli.run_folder import run_folder
from gradmedic.errors import InputError

MEGABYTE = 1_000_000
#: Recorded steps from which on the findings of a run that has ended are read, and not made anew.
LONG_RUN = 5_000


_RUN = "run folder, or one that holds several (the newest is taken); several are offered side by side"


class ReportCommand:
    """Writes the page that opens offline, in any browser."""

    summary = "write one self-contained HTML page of a recorded run"
    example = "example: gradmedic report runs/exp1 -o exp1.html --open"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("runs", metavar="RUN", nargs="+", help=_RUN)
        parser.add_argument(
            "-o", "--output", metavar="FILE", help="where to write it (default: <run>-report.html in this folder)"
        )
        parser.add_argument("--open", action="store_true", help="open it in the browser afterwards")
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Write the page and say where it is, how large, and how long it took."""
        began = time.perf_counter()
        runs = [run_folder(each, args.lang) for each in args.runs]
        file = output_file(args.output, runs)
        page = make_report(runs, lang=args.lang)
        write_output(file, page)
        size = file.stat().st_size / MEGABYTE
        print(f"{file}  {size:.1f} MB  {time.perf_counter() - began:.1f} s")
        if args.open:
            import webbrowser

            webbrowser.open(file.resolve().as_uri())
        return FINE


def make_report(folders: Sequence[str | Path], *, lang: str = "en") -> str:
    """Return the page of run folders.

    Args:
        folders: at least one; the first one is shown when the page opens.
        lang: "en" or "zh".

    Raises:
        InputError: one of them is not a folder or holds no run, or plotly is not installed.
    """
    from gradmedic.record import open_run
    from gradmedic.report.page.payload import build_payload
    from gradmedic.report.page.render import plotly_script, render_page

    plotly_script()  # what is missing is said before the work begins
    runs: list[Any] = []
    for folder in folders:
        run = open_run(folder)
        if run.problems and not run.steps.num_rows and not run.meta:
            raise InputError(f"{folder} holds no readable run: {run.problems[0]}")
        runs.append(run)
    return render_page([build_payload(run, _findings_of(run)) for run in runs], lang=lang)


def _findings_of(run: Any) -> list[Any] | None:
    """Return the findings that a long run made while it trained; None: judge it now.

    To judge 10,000 steps anew takes longer than all the rest of the page, and says the same.
    """
    from gradmedic.report.page.verdict import recorded_findings

    ended = any(event.get("kind") == "end" for event in run.events)
    ranks = len(run.steps["rank"].unique())
    if run.steps.num_rows <= LONG_RUN or not ended or ranks > 1:
        return None
    return recorded_findings(run.events)


def output_file(asked: str | None, folders: Sequence[str]) -> Path:
    """Return where to write: what was asked for, or a file in this folder that is named after the first run.

    Raises:
        InputError: it is a folder, lies in a run folder that is being read, or its own folder does not exist.
    """
    if asked is None:
        name = re.sub(r"[^\w.-]+", "_", Path(folders[0]).resolve().name).strip("._")
        return Path(f"{name or 'run'}-report.html")
    return check_output(asked, folders)
