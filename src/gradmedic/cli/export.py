"""`gradmedic export`: a run folder as Parquet, CSV or TensorBoard files."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gradmedic.cli.command import FINE, complain, default_language, say
from gradmedic.cli.ending import putting_away
from gradmedic.cli.run_folder import run_folder

FORMATS = ("parquet", "csv", "tensorboard")
#: Below this size it is done before a bar could be read.
_WORTH_A_BAR = 32 << 20


class ExportCommand:
    """Writes a recorded run as files that other programs read."""

    summary = "write a recorded run as Parquet, CSV or TensorBoard files"
    example = "example: gradmedic export runs/exp1 --to parquet -o tables --steps 0:1000 --columns norm,loss"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("run", metavar="RUN", help="run folder, or one that holds several (the newest is taken)")
        parser.add_argument("--to", choices=FORMATS, required=True, help="what to write")
        parser.add_argument(
            "-o", "--output", metavar="DIR", help="folder to write (default: beside the run, RUN-FORMAT)"
        )
        parser.add_argument(
            "--steps", metavar="FIRST:LAST", help='only these steps, LAST left out: "100:200", "100:", ":200"'
        )
        parser.add_argument(
            "--columns",
            action="append",
            metavar="NAMES",
            help="only these columns beside those that say which row it is, with commas between; may be repeated",
        )
        parser.add_argument("--force", action="store_true", help="replace files of the same names; others stay")

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Write the files, and say which."""
        from gradmedic.export import export_run

        args.run = run_folder(args.run, default_language())
        with putting_away(), _bar(Path(args.run)) as progress:
            done = export_run(
                args.run,
                args.to,
                args.output,
                steps=args.steps,
                columns=args.columns,
                force=args.force,
                progress=progress,
            )
        for problem in done.problems:
            complain(problem)
        if args.to == "csv":
            say("gradmedic: histograms are left out of CSV; --to parquet has them")
        print(f"{done.folder}: {', '.join(done.files)} ({_size(done.bytes)})")
        return FINE


@contextlib.contextmanager
def _bar(folder: Path) -> Iterator[Callable[[int, int], None] | None]:
    """Give what shows how far it is, on a terminal and for a large run; None otherwise."""
    size = sum(file.stat().st_size for file in folder.glob("*.arrows")) if folder.is_dir() else 0
    if size < _WORTH_A_BAR or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(folder.name.replace("[", r"\["), total=size)
        yield lambda done, whole: shown.update(task, completed=done, total=whole)


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
