"""The tables: by code and in total, tool beside tool, what was missed, every alarm on a healthy run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.patients.grid import Grid, count, one_in, share, steps
from benchmarks.patients.patient import SPLITS, Patient
from benchmarks.patients.plan import TWIN, twin_of
from benchmarks.patients.results import Line
from benchmarks.patients.scoring import OURS, Score, Sum, admitted, said_in, score, summed
from benchmarks.patients.significance import upper_bound

_ALL = "all"


@dataclass
class Cases:
    """What the tables are made of.

    Attributes:
        faults: patients that count, with their runs.
        healthy: healthy runs, twins and controls.
        verdicts: id -> whether the harm of a fault is real; None where too few runs are there.
        tools: names, gradmedic first.
        failed: runs that were not judged.
    """

    faults: list[tuple[Patient, list[Line]]] = field(default_factory=list)
    healthy: list[Line] = field(default_factory=list)
    verdicts: dict[str, bool | None] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    failed: list[Line] = field(default_factory=list)

    def scores(self, split: str, tool: str, code: str | None = None) -> list[Score]:
        """Return the scores of all faulty runs of a split, of those with one primary code if one is given."""
        return [
            score(patient, said_in(line, tool))
            for patient, lines in self.faults
            if split in (_ALL, patient.split) and code in (None, patient.code)
            for line in lines
        ]


def cases_of(patients: Sequence[Patient], lines: Sequence[Line], count_all: bool = False) -> Cases:
    """Sort results by what they are; runs of patients that are not asked for are left out.

    Args:
        patients: of the catalogue.
        lines: results.
        count_all: whether faults whose harm is not real count as well.
    """
    cases = Cases(tools=[OURS, *dict.fromkeys(name for line in lines for name in line["peers"])])
    wanted = {patient.id for patient in patients if patient.healthy}
    wanted |= {twin_of(patient.script) for patient in patients if not patient.healthy}
    judged = [line for line in lines if not line["problem"]]
    cases.healthy = [line for line in judged if line["id"] in wanted and line["healthy"]]
    known = wanted | {patient.id for patient in patients}
    cases.failed = [line for line in lines if line["id"] in known and (line["problem"] or line["status"] == "timeout")]
    for patient in patients:
        # A run that could not be judged has not been diagnosed: it counts, as one without a finding.
        own = [line for line in lines if line["id"] == patient.id]
        if patient.healthy or not own:
            continue
        cases.verdicts[patient.id] = admitted(patient, lines)
        if count_all or cases.verdicts[patient.id] is not False:
            cases.faults.append((patient, own))
    return cases


def build(patients: Sequence[Patient], lines: Sequence[Line], count_all: bool = False) -> list[Grid]:
    """Return all tables; see the README for what the columns mean."""
    cases = cases_of(patients, lines, count_all)
    splits = [split for split in SPLITS if any(line["split"] == split for line in lines)]
    grids = [_tools(cases, [*splits, _ALL])]
    grids += [_codes(cases, split) for split in splits]
    grids += [_missed(cases), _early(cases), _alarms(cases), _not_admitted(cases, patients, lines), _failed(cases)]
    return [grid for grid in grids if grid.rows]


# -- numbers -------------------------------------------------------------------------------------------------------


def _tools(cases: Cases, splits: Sequence[str]) -> Grid:
    header = ("split", "tool", "runs", "top-1", "top-3", "precision", "layer", "latency", "in time")
    healthy = ("healthy runs", "with alarm", "95 % bound", "alarms / 1k steps")
    grid = Grid("Tools", (*header, *healthy), note=_cost(cases.healthy))
    for split in splits:
        runs = [line for line in cases.healthy if split in (_ALL, line["split"])]
        total = sum(line["steps"] for line in runs)
        for tool in cases.tools:
            alarms = [len(said_in(line, tool)) for line in runs]
            bad = sum(number > 0 for number in alarms)
            bound = share(upper_bound(bad, len(runs))) if runs else "–"
            rate = f"{1000 * sum(alarms) / total:.2f}" if total else "–"
            figures = _figures(summed(cases.scores(split, tool)))
            grid.add(split, tool, *figures, count(len(runs)), one_in(bad, len(runs)), bound, rate)
    return grid


def _figures(total: Sum) -> tuple[str, ...]:
    shares = (total.top1, total.top3, total.precision, total.layer)
    return count(total.runs), *map(share, shares), steps(total.latency), share(total.in_time)


def _codes(cases: Cases, split: str) -> Grid:
    peers = cases.tools[1:]
    header = ("code", "faults", "admitted", "runs", "top-1", "top-3", "precision", "layer", "latency", "in time")
    grid = Grid(f"By code, {split}", (*header, *(f"{peer}: top-1" for peer in peers)))
    here = [patient for patient, _ in cases.faults if patient.split == split]
    for code in [*sorted({patient.code for patient in here}), None]:
        members = [patient for patient in here if code in (None, patient.code)]
        names = ", ".join(patient.id for patient in members) if code else str(len(members))
        shown = sum(bool(cases.verdicts[patient.id]) for patient in members)
        others = [share(summed(cases.scores(split, peer, code)).top1) for peer in peers]
        figures = _figures(summed(cases.scores(split, OURS, code)))
        grid.add(code or "total", names, one_in(shown, len(members)), *figures, *others)
    return grid if here else Grid("", ())


def _cost(lines: Iterable[Line]) -> str:
    known = [line["overhead"] for line in lines if line.get("overhead") is not None]
    if not known:
        return ""
    return f"gradmedic's own share of the step time of these tiny models, median: {share(median(known))}"


# -- lists ---------------------------------------------------------------------------------------------------------


def _missed(cases: Cases) -> Grid:
    grid = Grid("Missed: not named first", ("id", "title", "accepted", "missed", "said instead", "right one"))
    for patient, lines in cases.faults:
        missed = [line for line in lines if not score(patient, said_in(line)).top1]
        if missed:
            instead = Counter(_first(line) for line in missed)
            place = Counter(_place(patient, line) for line in missed)
            accepted = ", ".join(patient.accepted)
            grid.add(patient.id, patient.title, accepted, one_in(len(missed), len(lines)), _list(instead), _list(place))
    return grid


def _first(line: Line) -> str:
    said = said_in(line)
    if said:
        return said[0].text
    notes = [each["code"] for each in line["findings"]]
    return f"nothing (info: {', '.join(notes)})" if notes else "nothing"


def _place(patient: Patient, line: Line) -> str:
    """Return where an accepted code is, when it is not the first."""
    said = said_in(line)
    for at, each in enumerate(said):
        if each.names(patient.accepted):
            return f"place {at + 1}"
    for each in said:
        if set(each.beneath) & set(patient.accepted):
            return f"under {each.text}"
    if any(each["code"] in patient.accepted for each in line["findings"]):
        return "as info"
    return "absent"


def _early(cases: Cases) -> Grid:
    grid = Grid("Named before the fault began to act", ("id", "title", "runs", "onset", "latency"))
    for patient, lines in cases.faults:
        known = [score(patient, said_in(line)).latency for line in lines]
        early = [latency for latency in known if latency is not None and latency < 0]
        if early:
            latencies = ", ".join(map(str, early))
            grid.add(patient.id, patient.title, one_in(len(early), len(lines)), count(patient.onset), latencies)
    return grid


def _alarms(cases: Cases) -> Grid:
    grid = Grid("Alarms on healthy runs", ("id", "split", "code", "seeds", "said at", "where"))
    found: dict[tuple[str, str, str], list[tuple[int, int, str]]] = {}
    for line in cases.healthy:
        for each in said_in(line):
            key = (line["id"], line["split"], each.text)
            found.setdefault(key, []).append((line["seed"], each.made, ", ".join(each.where[:2])))
    for (name, split, code), entries in sorted(found.items()):
        seeds, made, where = zip(*sorted(entries), strict=True)
        places = "; ".join(dict.fromkeys(each for each in where if each))
        grid.add(name, split, code, ", ".join(map(str, seeds)), ", ".join(map(str, made)), places)
    return grid


def _not_admitted(cases: Cases, patients: Sequence[Patient], lines: Sequence[Line]) -> Grid:
    grid = Grid("Harm not shown", ("id", "title", "verdict", "metric", "of the twin"))
    for patient in patients:
        verdict = cases.verdicts.get(patient.id, True)
        if verdict is True:
            continue
        metrics = [_metrics(lines, name) for name in (patient.id, twin_of(patient.script))]
        word = "too few runs; counts" if verdict is None else "no real harm; does not count"
        grid.add(patient.id, patient.title, word, *metrics)
    return grid


def _metrics(lines: Iterable[Line], name: str) -> str:
    values = [line["metric"] for line in lines if line["id"] == name]
    known = [value for value in values if value is not None]
    text = f"{median(known):.4g}" if known else "none"
    return f"{text} ({len(known)} of {len(values)})"


def _failed(cases: Cases) -> Grid:
    grid = Grid("Runs that were not judged, or hung", ("id", "seed", "status", "problem", "output ends"))
    for line in cases.failed:
        last = line.get("output", "").strip().splitlines()[-1:]
        grid.add(line["id"].removeprefix(TWIN), count(line["seed"]), line["status"], line["problem"], "".join(last))
    return grid


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{text} ×{number}" if number > 1 else text for text, number in counts.most_common())
