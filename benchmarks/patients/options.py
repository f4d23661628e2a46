"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.patients.patient import HERE, SPLITS, Patient, load_catalogue
from benchmarks.patients.plan import Job, jobs
from benchmarks.patients.results import RESULTS, Line, append, keys, load
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradmedic.errors import InputError

#: Of the tables, in columns, where the output is no terminal.
_WIDTH = 180


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark or make its table; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["table"]:
            return _table(_table_parser().parse_args(words[1:]))
        return _run(_run_parser().parse_args(words))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.patients",
        description="Run every fault, its healthy twin and every control under gradmedic; what is on file is not run "
        "again. `python -m benchmarks.patients table` shows the results.",
    )
    parser.add_argument("--split", choices=SPLITS, help="only this one")
    parser.add_argument("--only", metavar="IDS", help="only these patients, and their twins: F06,H01")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each (5)")
    parser.add_argument("--seed-start", type=int, default=0, metavar="N", help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs side by side (2)")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds for one run (120)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help=f"results ({RESULTS.name})")
    parser.add_argument("--fresh", action="store_true", help="run again what is on file")
    parser.add_argument("--no-twins", action="store_true", help="leave the healthy twins of faults out")
    parser.add_argument("--keep-runs", type=Path, metavar="DIR", help="keep the run folders there")
    parser.add_argument("--patients", type=Path, default=HERE, metavar="DIR", help=argparse.SUPPRESS)
    return parser


def _table_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patients table", description="Show the results.")
    parser.add_argument("file", type=Path, nargs="?", default=RESULTS, help="results of a run")
    parser.add_argument("--split", choices=SPLITS, help="only this one")
    parser.add_argument("--only", metavar="IDS", help="only these patients")
    parser.add_argument("--all", action="store_true", help="also count faults whose harm is not shown")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables there")
    parser.add_argument("--patients", type=Path, default=HERE, metavar="DIR", help=argparse.SUPPRESS)
    return parser


def chosen(patients: Sequence[Patient], only: str | None, split: str | None) -> list[Patient]:
    """Return the patients that were asked for.

    Raises:
        InputError: an id that is not in the catalogue, or nobody is left.
    """
    wanted = [each.strip() for each in only.split(",")] if only else []
    unknown = sorted(set(wanted) - {patient.id for patient in patients})
    if unknown:
        raise InputError(f"no patient {', '.join(unknown)}; there are: {', '.join(each.id for each in patients)}")
    found = [each for each in patients if (not wanted or each.id in wanted) and split in (None, each.split)]
    if not found:
        raise InputError(f"none of {only} is in the split {split!r}; leave --split out")
    return found


def _run(options: argparse.Namespace) -> int:
    if options.seeds < 1 or options.jobs < 1:
        raise InputError(f"--seeds and --jobs are at least 1, got {options.seeds} and {options.jobs}")
    patients = chosen(load_catalogue(options.patients), options.only, options.split)
    seeds = range(options.seed_start, options.seed_start + options.seeds)
    listed = jobs(patients, seeds, twins=not options.no_twins)
    done = set() if options.fresh else keys(load(options.out))
    todo = [job for job in listed if job.key not in done]
    failed = _run_all(todo, options) if todo else 0
    print(f"{len(todo)} runs, {len(listed) - len(todo)} were on file, {failed} did not end by themselves")
    print(f"results: {options.out}")
    return 0


def _run_all(todo: Sequence[Job], options: argparse.Namespace) -> int:
    from benchmarks.patients.child import preload
    from benchmarks.patients.running import Runner

    preload()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runs under way are ended, too
    options.out.parent.mkdir(parents=True, exist_ok=True)
    runner = Runner(options.patients.resolve() / "scripts", options.jobs, timeout=options.timeout)
    if options.keep_runs is not None:
        options.keep_runs.mkdir(parents=True, exist_ok=True)
        runner = replace(runner, keep=options.keep_runs.resolve())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # No thread may run where processes are forked: the bar is drawn by hand.
    progress = Progress(
        *columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False
    )
    failed = 0
    with progress:
        bar = progress.add_task("patients", total=len(todo))

        def done(job: Job, line: Line) -> None:
            nonlocal failed
            append(options.out, line)
            if line["status"] != "ended" or line["problem"]:
                failed += 1
                progress.console.print(f"{job.id} seed {job.seed}: {line['status']} {line['problem']}".rstrip())
            progress.update(bar, advance=1, description=f"{job.id} seed {job.seed}")
            progress.refresh()

        runner.run(todo, done)
    return failed


def _table(options: argparse.Namespace) -> int:
    from benchmarks.patients.grid import render, to_markdown
    from benchmarks.patients.report import build

    patients = chosen(load_catalogue(options.patients), options.only, options.split)
    lines = load(options.file)
    if not lines:
        raise InputError(f"no results in {options.file}; run `python -m benchmarks.patients` first")
    report = build(patients, lines, count_all=options.all)
    console = Console()
    render(report, console if console.is_terminal else Console(width=_WIDTH))
    if options.markdown is not None:
        options.markdown.write_text(to_markdown(report), encoding="utf-8")
    return 0
