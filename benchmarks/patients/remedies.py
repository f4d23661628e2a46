"""Does the remedy help? `python -m benchmarks.patients.remedies [RESULTS]`, after the benchmark itself.

The first remedy of the first alarm is carried out on the faulty script, which is then trained once more; so is one
drawn at random from the same vocabulary. Only what can be done from outside a script is: the learning rate and other
settings of its optimizers, clipping, the guard, and another initialisation. What asks for a change of code (clear the
gradients, shuffle, drop the softmax) is the healthy twin by definition and proves nothing.

A remedy has helped when the metric has come back by at least `RECOVERED` of the way from the faulty run to the twin.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.patients.child import preload, run_script
from benchmarks.patients.forks import Fork, fork
from benchmarks.patients.patient import HERE, Patient, load_catalogue
from benchmarks.patients.plan import twin_of
from benchmarks.patients.results import RESULTS, Line, append, load

Action = Mapping[str, Any]
FILE = RESULTS.with_name("patients_remedies.jsonl")
RECOVERED = 0.8
#: What a reader might try who does not know what is wrong.
VOCABULARY: tuple[Action, ...] = (
    {"kind": "lr", "factor": 0.1},
    {"kind": "lr", "factor": 0.3},
    {"kind": "lr", "factor": 3.0},
    {"kind": "lr", "factor": 10.0},
    {"kind": "clip", "spec": "norm(1.0)"},
    {"kind": "guard"},
    {"kind": "init", "scheme": "auto"},
    {"kind": "optimizer", "weight_decay": 0.0},
    {"kind": "optimizer", "eps": 1e-8},
    {"kind": "optimizer", "beta2": 0.95},
)
_SETTINGS = ("eps", "beta2", "weight_decay")


@dataclass(frozen=True)
class Trial:
    """One faulty run with one remedy: "first" is gradmedic's, "random" the drawn one."""

    patient: Patient
    seed: int
    which: str
    action: Action
    code: str


def applicable(action: Action) -> bool:
    """Whether an action can be carried out from outside a script."""
    kind = action.get("kind")
    if kind == "optimizer":
        return any(key in action for key in _SETTINGS)
    return kind in ("lr", "clip", "guard", "init")


def trials(lines: Iterable[Line], patients: Sequence[Patient]) -> list[Trial]:
    """Return what is to be tried: for each faulty run whose first alarm has such a remedy, it and a random one."""
    by_id = {patient.id: patient for patient in patients}
    found: list[Trial] = []
    for line in lines:
        patient = by_id.get(line["id"])
        alarms = [each for each in line.get("findings", ()) if each["severity"] != "info"]
        if patient is None or patient.healthy or not alarms:
            continue
        actions = alarms[0].get("actions", [])
        if not actions or not applicable(actions[0]):
            continue
        drawn = random.Random(f"{patient.id} {line['seed']}").choice([a for a in VOCABULARY if a != actions[0]])
        for which, action in (("first", actions[0]), ("random", drawn)):
            found.append(Trial(patient, line["seed"], which, action, alarms[0]["code"]))
    return found


def run_treated(script: Path, arguments: list[str], action: Action, record: Path) -> int:
    """Run a script with a remedy; return its exit code. Called in a process of its own."""
    from gradmedic.diagnosis.actions import run_options

    change_optimizers(action)
    return run_script(record, script, arguments, ["--quiet", *run_options(action)])


def change_optimizers(action: Action) -> None:
    """Have every optimizer that is made from now on begin with other settings, or a model with other weights."""
    import torch

    original = torch.optim.Optimizer.__init__

    def begin(self: torch.optim.Optimizer, params: Any, defaults: dict[str, Any]) -> None:
        original(self, params, defaults)
        if action["kind"] == "init":
            initialise()
        for settings in (self.defaults, *self.param_groups):
            change(settings, action)

    torch.optim.Optimizer.__init__ = begin  # type: ignore[method-assign]


def change(settings: dict[str, Any], action: Action) -> None:
    """Change the settings of an optimizer, or of a group of its parameters, in place."""
    if action["kind"] == "lr":
        settings["lr"] = settings["lr"] * action["factor"]
    if action["kind"] != "optimizer":
        return
    for key in ("eps", "weight_decay"):
        if key in action and key in settings:
            settings[key] = action[key]
    if "beta2" in action and "betas" in settings:
        settings["betas"] = (settings["betas"][0], action["beta2"])


def initialise() -> None:
    """Give every live model the weights that gradmedic suggests."""
    import gradmedic as gm
    from gradmedic.roster import live_models

    for model in live_models():
        gm.init.suggest(model).apply_()


def recovery(treated: Any, faulty: Sequence[Any], twin: Sequence[Any], higher: bool) -> float | None:
    """Return how much of the way from the faulty metric to the twin's has been made good; None where there is none.

    Metrics that are missing or not finite count as no recovery; a faulty run without a metric is as bad as can be, and
    then coming within a tenth of the twin's is all of the way.
    """
    goal = _median(twin)
    if goal is None:
        return None
    if not _finite(treated):
        return 0.0
    start = _median(faulty)
    if start is None:
        off = (goal - treated) if higher else (treated - goal)
        return 1.0 if off <= 0.1 * abs(goal) else 0.0
    gap = goal - start if higher else start - goal
    made = treated - start if higher else start - treated
    return made / gap if gap > 0 else None


def table(done: Sequence[Line], lines: Sequence[Line]) -> list[str]:
    """Return the markdown table: by code and in total, ours beside the random one."""
    metrics: dict[str, list[Any]] = {}
    higher: dict[str, bool] = {}
    for line in lines:
        metrics.setdefault(line["id"], []).append(line.get("metric"))
        if line.get("higher_is_better") is not None:
            higher[line["id"]] = bool(line["higher_is_better"])
    rows: dict[str, dict[str, list[float]]] = {}
    for line in done:
        twin = twin_of(line["script"])
        if twin not in higher:
            continue
        back = recovery(line["metric"], metrics.get(line["id"], []), metrics.get(twin, []), higher[twin])
        if back is not None:
            for name in (line["code"], "all"):
                rows.setdefault(name, {}).setdefault(line["which"], []).append(back)
    text = [
        "| first finding | runs | helped | median recovery | random remedy helped | its median |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda each: (each == "all", each)):
        ours, drawn = rows[name].get("first", []), rows[name].get("random", [])
        text.append(
            f"| {name} | {len(ours)} | {_helped(ours)} | {_middle(ours)} | {_helped(drawn)} | {_middle(drawn)} |"
        )
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not on file, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help="JSON lines of the benchmark")
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=240.0)
    options = parser.parse_args(arguments)
    lines = load(options.results)
    known = {(line["id"], line["seed"]) for line in load(options.out)}
    wanted = [each for each in trials(lines, load_catalogue()) if (_key(each), each.seed) not in known]
    if wanted:
        preload()
        _run(wanted, options)
    print("\n".join(table([_split(line) for line in load(options.out)], lines)))
    return 0


def _run(wanted: list[Trial], options: argparse.Namespace) -> None:
    active: list[tuple[Trial, Fork, Path]] = []
    total, waiting = len(wanted), list(reversed(wanted))
    # No TemporaryDirectory: a forked child would run its finalizer, and take the folder away from the others.
    root = tempfile.mkdtemp(prefix="remedies-")
    try:
        while waiting or active:
            while waiting and len(active) < options.jobs:
                trial = waiting.pop()
                folder = Path(tempfile.mkdtemp(dir=root))
                script = HERE / "scripts" / trial.patient.script
                words = [
                    "--fault",
                    trial.patient.id,
                    "--seed",
                    str(trial.seed),
                    "--metric",
                    str(folder / "metric.json"),
                ]
                body = functools.partial(run_treated, script, words, trial.action, folder / "record")
                active.append((trial, fork(body, folder, folder / "output.txt", options.timeout), folder))
            for entry in [each for each in active if each[1].poll()]:
                active.remove(entry)
                append(options.out, _line(entry[0], entry[2] / "metric.json"))
                print(f"\r{total - len(waiting) - len(active)} of {total}", end="", file=sys.stderr, flush=True)
            time.sleep(0.02)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(file=sys.stderr)


def _line(trial: Trial, file: Path) -> Line:
    metric = json.loads(file.read_text(encoding="utf-8"))["metric"] if file.exists() else None
    return {
        "id": _key(trial),
        "seed": trial.seed,
        "script": trial.patient.script,
        "code": trial.code,
        "action": dict(trial.action),
        "metric": metric,
    }


def _key(trial: Trial) -> str:
    return f"{trial.patient.id}:{trial.which}"


def _split(line: Line) -> Line:
    patient, _, which = line["id"].partition(":")
    return {**line, "id": patient, "which": which}


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _median(values: Sequence[Any]) -> float | None:
    known = [float(value) for value in values if _finite(value)]
    return median(known) if known else None


def _helped(values: Sequence[float]) -> str:
    return f"{sum(value >= RECOVERED for value in values) / len(values):.0%}" if values else ""


def _middle(values: Sequence[float]) -> str:
    return f"{median(values):.2f}" if values else ""


if __name__ == "__main__":
    sys.exit(main())
