"""Does clipping keep an aggressive training run alive? A post-norm transformer, three settings, 40 seeds, all methods.

    python benchmarks/stability.py                  # everything; goes on where it was stopped
    python benchmarks/stability.py --seeds 10       # fewer seeds
    python benchmarks/stability.py --report         # table and plot again, from the results on file
    python benchmarks/stability.py --quick          # a smoke run of about a minute, into a temporary file

What is measured, and how, is in docs/stability.md, which `--report` fills in.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stability_methods import GUARD, TRAINED, default_name
from stability_report import write_report
from stability_settings import LOOK, SETTINGS, STEPS
from stability_store import Key, Run, append, load
from stability_tasks import TASKS
from stability_training import Setting, heat

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "stability.jsonl"


@dataclass(frozen=True)
class Job:
    """What one process does at a time: the runs of one task and seed that are not on file."""

    task: str
    seed: int
    entries: tuple[tuple[Setting, str], ...]
    steps: int


def entries(task: str) -> list[tuple[Setting, str]]:
    """Return settings and methods of a task; on healthy settings only the default and its opposite."""
    healthy = (GUARD + "none", *dict.fromkeys([default_name(), "skip + ZClip + norm 1.0"]))
    return [(s, name) for s in SETTINGS[task] for name in (TRAINED if s.spoil else healthy)]


def jobs(seeds: int, done: dict[Key, Run], steps: int = STEPS) -> Iterator[Job]:
    """Yield what is to be done, all of one seed before the next, so that what is there is always comparable."""
    for seed in range(seeds):
        for task in TASKS:
            left = [each for each in entries(task) if Key(task, each[0].name, each[1], seed) not in done]
            if left:
                yield Job(task, seed, tuple(left), steps)


def work(job: Job) -> list[Run]:
    """Do a job, on one thread."""
    torch.set_num_threads(1)
    return heat(TASKS[job.task](), job.entries, TRAINED, job.seed, job.steps, min(LOOK, job.steps))


def run(path: Path, seeds: int, processes: int, steps: int = STEPS) -> None:
    """Do all jobs that are left; each one's results are on file as soon as it ends."""
    todo = list(jobs(seeds, load(path), steps))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn()) as progress:
        bar = progress.add_task("runs", total=sum(len(job.entries) for job in todo))
        # A forked child inherits locks of torch's thread pool.
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            for runs in pool.imap_unordered(work, todo):
                append(path, runs)
                progress.advance(bar, len(runs))
                if not progress.console.is_terminal:  # a log file gets no bar
                    print(f"{progress.tasks[0].completed:.0f} of {progress.tasks[0].total:.0f} runs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, help="seeds for each task, setting and method (40)")
    parser.add_argument("--processes", type=int, default=2, help="training processes, of one thread each (2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines; what is there is not done again")
    parser.add_argument("--report", action="store_true", help="only write table and plot")
    parser.add_argument("--quick", action="store_true", help="one seed, 20 steps, results thrown away")
    options = parser.parse_args()
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder) / "quick.jsonl", 1, options.processes, steps=20)
            print(f"{len(load(Path(folder) / 'quick.jsonl'))} runs of 20 steps: all is in order")
        return
    if not options.report:
        run(options.results, options.seeds, options.processes)
    write_report(load(options.results), ROOT / "docs")


if __name__ == "__main__":
    main()
