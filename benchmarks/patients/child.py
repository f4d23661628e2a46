"""What the forked processes do: run a script as `gradmedic run` does, and judge the record that it left."""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

#: What a training under `gradmedic run` imports sooner or later; the first optimizer imports torch._dynamo.
_IMPORTS = (
    "benchmarks.patients.judging",
    "benchmarks.patients.peers",
    "gradmedic.cli.session",
    "gradmedic.diagnosis",
    "gradmedic.record",
    "gradmedic.report.text",
    "gradmedic.watching",
    "pyarrow.compute",
    "rich.console",
    "sklearn.datasets",
    "torch._dynamo",
)


def preload() -> None:
    """Import what every run would import by itself, before anything is forked."""
    for name in _IMPORTS:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is shared with the forks is not written to by their collector


def run_script(record: Path, script: Path, arguments: list[str], options: Sequence[str] = ()) -> int:
    """Do what `gradmedic run OPTIONS --record RECORD SCRIPT ARGUMENTS` does; return its exit code."""
    from gradmedic.cli import main

    words = ["run", *options, "--record", str(record), str(script), *arguments]
    sys.argv[:] = ["gradmedic", *words]
    sys.orig_argv = [sys.executable, "-m", "gradmedic", *words]
    try:
        return main(words)
    except KeyboardInterrupt:
        return 130


def judge_run(record: Path, answer: Path) -> int:
    """Write what gradmedic and its peers say of a record, as JSON; return 0."""
    from benchmarks.patients.judging import judgement
    from benchmarks.patients.peers import PEERS
    from benchmarks.patients.peers.trace import Trace

    from gradmedic.record import open_run

    run = open_run(record)
    said = judgement(run)
    trace = Trace.of(run)
    said["peers"] = {peer.name: [verdict.to_json() for verdict in peer.judge(trace)] for peer in PEERS}
    answer.write_text(json.dumps(said, allow_nan=False), encoding="utf-8")
    return 0
