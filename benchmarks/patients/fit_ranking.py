"""Fit the weights of the ranking on the development split: `python -m benchmarks.patients.fit_ranking [RESULTS]`.

A conditional logit: of all findings of one faulty run at "warning" or above, the probability of being the cause goes
as exp(score). What is maximised is the likelihood that an accepted finding comes first, less a ridge penalty on the
distance from the weights in force, so that classes of which the patients say little keep their place. A graver, surer
or earlier finding must not lose by it: the signs of three weights are bounds. Every patient counts alike, however many
seeds it has.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from benchmarks.patients.patient import Patient, load_catalogue
from benchmarks.patients.results import RESULTS, Line, load

from gradmedic.diagnosis import ranking
from gradmedic.diagnosis.finding import rank_of

Floats = npt.NDArray[np.float64]
FILE = Path(ranking.__file__).with_suffix(".json")
#: Strength of the pull towards the weights in force.
RIDGE = 0.05


@dataclass(frozen=True)
class Case:
    """One faulty run: features of its findings [n, 3 + classes], which of them are right [n], and its weight."""

    patient: str
    features: Floats
    right: npt.NDArray[np.bool_]
    weight: float


def cases(lines: Iterable[Line], patients: Sequence[Patient], classes: Sequence[str]) -> list[Case]:
    """Return the runs from which something can be learned: a right finding beside a wrong one."""
    by_id = {patient.id: patient for patient in patients}
    chosen: list[tuple[str, list[dict], list[bool]]] = []
    for line in lines:
        patient = by_id.get(line["id"])
        if patient is None or patient.healthy or line.get("healthy"):
            continue
        said = [each for each in line.get("findings", ()) if rank_of(each["severity"]) >= rank_of("warning")]
        right = [each["code"] in patient.accepted for each in said]
        true = [each["code"] in patient.also_true for each in said]
        kept = [(each, ok) for each, ok, fine in zip(said, right, true, strict=True) if ok or not fine]
        if any(right) and not all(ok for _, ok in kept):
            chosen.append((patient.id, [each for each, _ in kept], [ok for _, ok in kept]))
    seeds = {name: sum(other == name for other, _, _ in chosen) for name, _, _ in chosen}
    return [Case(name, features(said, classes), np.array(right), 1 / seeds[name]) for name, said, right in chosen]


def features(said: Sequence[dict], classes: Sequence[str]) -> Floats:
    """Return severity, confidence, onset and class of findings [n, 3 + classes]."""
    earliest = min(each["step"] for each in said)
    rows = np.zeros((len(said), 3 + len(classes)))
    for row, each in zip(rows, said, strict=True):
        row[:3] = rank_of(each["severity"]), each["confidence"], math.log1p(each["step"] - earliest)
        row[3 + classes.index(class_of(each))] = 1.0
    return rows


def class_of(said: dict) -> str:
    """Return what a finding's prior is looked up by: its code, or code and variant where these have their own."""
    key = f"{said['code']}/{said.get('variant', '')}"
    return key if key in ranking.weights().variants else said["code"]


def loss(theta: Floats, start: Floats, given: Sequence[Case]) -> tuple[float, Floats]:
    """Return the penalised negative log likelihood and its gradient."""
    total, slope = RIDGE * float((theta - start) @ (theta - start)), 2 * RIDGE * (theta - start)
    for case in given:
        scores = case.features @ theta
        everyone, correct = _softmax(scores), _softmax(np.where(case.right, scores, -np.inf))
        total += case.weight * (_log_sum(scores) - _log_sum(scores[case.right]))
        slope = slope + case.weight * (everyone - correct) @ case.features
    return total, slope


def fitted(given: Sequence[Case], start: Floats) -> Floats:
    """Return the weights that fit best."""
    from scipy.optimize import minimize

    bounds = [(0.0, None), (0.0, None), (None, 0.0), *[(None, None)] * (len(start) - 3)]
    result = minimize(loss, start, args=(start, given), jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(result.x)


def top_1(theta: Floats, given: Sequence[Case]) -> float:
    """Return the weighted share of cases whose best finding is right."""
    hits = [case.weight * bool(case.right[int(np.argmax(case.features @ theta))]) for case in given]
    return sum(hits) / max(1e-9, sum(case.weight for case in given))


def left_out(given: Sequence[Case], start: Floats) -> float:
    """Return top-1 where every patient is judged by weights that were fitted without it."""
    names = sorted({case.patient for case in given})
    parts = []
    for name in names:
        theta = fitted([case for case in given if case.patient != name], start)
        parts.append(top_1(theta, [case for case in given if case.patient == name]))
    return float(np.mean(parts)) if parts else math.nan


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, say how well, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help="JSON lines of the benchmark")
    parser.add_argument("--write", action="store_true", help=f"replace {FILE.name}")
    options = parser.parse_args(arguments)
    patients = [patient for patient in load_catalogue() if patient.split == "development"]
    lines = load(options.results)
    held = ranking.weights()
    said = [each for line in lines for each in line.get("findings", ())]
    classes = sorted({class_of(each) for each in said} | set(held.codes) | set(held.variants))
    start = np.array([held.severity, held.confidence, held.onset, *(_prior(held, name) for name in classes)])
    given = cases(lines, patients, classes)
    print(f"{len(given)} runs of {len({case.patient for case in given})} patients have right and wrong findings")
    if not given:
        return 0
    theta = fitted(given, start)
    before, after = top_1(start, given), top_1(theta, given)
    print(f"top-1 of these: {before:.3f} before, {after:.3f} after, {left_out(given, start):.3f} each patient left out")
    if options.write:
        FILE.write_text(json.dumps(as_json(theta, start, classes, held), indent=2) + "\n", encoding="utf-8")
        print(f"written: {FILE}")
    return 0


def as_json(theta: Floats, start: Floats, classes: Sequence[str], held: ranking.Weights) -> dict[str, object]:
    """Return the content of the weights' file; classes that the fit did not move keep their family's prior."""
    moved = {
        name: round(float(value), 2)
        for name, value, before in zip(classes, theta[3:], start[3:], strict=True)
        if abs(value - before) > 0.01 or name in held.codes or name in held.variants
    }
    return {
        "about": "Weights of the ranking; benchmarks/patients/fit_ranking.py fits them on the development split.",
        "severity": round(float(theta[0]), 2),
        "confidence": round(float(theta[1]), 2),
        "onset": round(float(theta[2]), 2),
        "families": dict(held.families),
        "codes": {name: value for name, value in moved.items() if "/" not in name},
        "variants": {name: value for name, value in moved.items() if "/" in name},
    }


def _prior(held: ranking.Weights, name: str) -> float:
    code, _, variant = name.partition("/")
    return held.prior(code, variant)


def _log_sum(scores: Floats) -> float:
    top = scores.max()
    return float(top + np.log(np.exp(scores - top).sum()))


def _softmax(scores: Floats) -> Floats:
    grown = np.exp(scores - scores.max())
    return np.asarray(grown / grown.sum())


if __name__ == "__main__":
    raise SystemExit(main())
