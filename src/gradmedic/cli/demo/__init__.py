"""`gradmedic demo`: a patient, its check-up, and the same patient treated; about a minute on two idle cores."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gradmedic.cli.command import FINE, add_language
from gradmedic.cli.folders import claim


class DemoCommand:
    """Trains a small transformer that explodes, says why, and trains it again as advised."""

    summary = "train a small transformer that explodes, say why, and treat it"
    example = "example: gradmedic demo --lang zh"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--record", metavar="DIR", help="folder for both runs (default: runs/demo-DATE-TIME)")
        parser.add_argument("--overwrite", action="store_true", help="replace the runs that are in the folder")
        parser.add_argument("--fast", action="store_true", help="fewer steps: a few seconds")
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Train both; return 0."""
        named = args.record is not None
        folder = Path(args.record) if named else Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
        with _place(folder, named=named) as place:
            for phase in ("sick", "treated"):
                claim(place / phase, overwrite=args.overwrite)
            from gradmedic.cli.demo.show import perform

            perform(place, steps=60 if args.fast else 150, lang=args.lang, kept=place == folder)
        return FINE


@contextlib.contextmanager
def _place(folder: Path, *, named: bool) -> Iterator[Path]:
    """Yield where to record; a temporary place when nobody named one and the present folder cannot be written to."""
    if named:
        yield folder
        return
    try:
        folder.mkdir(parents=True)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="gradmedic-demo-") as temporary:
            yield Path(temporary)
        return
    yield folder
