"""How often does a run crash, with and without the guard? A tiny BERT on real text, loss scaling, injected faults.

    python benchmarks/crash_rate.py                  # 2 seeds of 10,000 steps; goes on where it was stopped
    python benchmarks/crash_rate.py --parts          # also each part of the guard, one seed
    python benchmarks/crash_rate.py --report         # only the table again, from the results on file
    python benchmarks/crash_rate.py --quick          # a smoke run of about a minute, into a temporary file

Needs `pip install "transformers>=5"`; nothing is downloaded. What is measured, and how, is in docs/stability.md, whose
section "Crash rate" this fills in. Exit code 1: the guard misses the bar.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from crash_arms import MAIN, PARTS
from crash_model import require_transformers
from crash_report import BAR, reduction, write_section
from crash_store import Key, Run, append, load
from crash_text import read_text
from crash_training import Arm, train

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "crash_rate.jsonl"
#: The control, without faults, is shorter: it only has to show that nothing crashes by itself.
CONTROL_SHARE = 0.2


def plan(seeds: list[int], steps: int, parts: bool) -> Iterator[tuple[Arm, int, int, bool]]:
    """Yield (arm, seed, steps, with faults), what matters most first."""
    for seed in seeds:
        yield from ((arm, seed, steps, True) for arm in MAIN)
    yield from ((arm, seeds[0], int(steps * CONTROL_SHARE), False) for arm in MAIN)
    if parts:
        yield from ((arm, seeds[0], steps, True) for arm in PARTS)


def runs_on_file(path: Path, steps: int) -> list[Run]:
    """Return the runs of so many steps, and their controls."""
    full, short = load(path, steps), load(path, int(steps * CONTROL_SHARE))
    return [run for key, run in full.items() if key.faulty] + [run for key, run in short.items() if not key.faulty]


def run(path: Path, seeds: list[int], steps: int, parts: bool) -> None:
    """Do all runs that are not on file; each is on file as soon as it ends."""
    torch.set_num_threads(1)
    text = read_text()
    done = {each.key for each in runs_on_file(path, steps)}
    todo = [each for each in plan(seeds, steps, parts) if Key(each[0].name, each[1], each[3]) not in done]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("steps", total=sum(each[2] for each in todo))
        for arm, seed, length, faulty in todo:
            progress.update(bar, description=f"{arm.name}, seed {seed}" + ("" if faulty else ", no faults"))
            append(path, train(arm, seed, length, faulty, text, lambda: progress.advance(bar)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="optimizer steps of a run (10,000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="one run of each arm for each seed (0 1)")
    parser.add_argument("--parts", action="store_true", help="also parts of the guard, with the first seed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines; what is there is not done again")
    parser.add_argument("--report", action="store_true", help="only write the table")
    parser.add_argument("--quick", action="store_true", help="one seed, 200 steps, results thrown away")
    options = parser.parse_args()
    with suppress(AttributeError):  # not on Windows
        os.nice(19)
    if options.quick:
        require_transformers()
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder) / "quick.jsonl", [0], 200, parts=False)
            print(f"{len(load(Path(folder) / 'quick.jsonl', 200))} runs of 200 steps: all is in order")
        return 0
    if not options.report:
        require_transformers()
        run(options.results, options.seeds, options.steps, options.parts)
    runs = runs_on_file(options.results, options.steps)
    print(write_section(runs, ROOT / "docs" / "stability.md"))
    return 0 if reduction(runs).value >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
