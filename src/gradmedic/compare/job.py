"""One comparison, put together."""

from __future__ import annotations

import os
from itertools import chain

import numpy as np

from gradmedic.compare.comparison import Comparison, Cost, Course, LayerDifference
from gradmedic.compare.divergence import first_difference, lost_in_both, partings, phases, skipped_alone
from gradmedic.compare.pairing import common_steps, paired
from gradmedic.compare.settings import differences
from gradmedic.compare.tables import CommonTables
from gradmedic.compare.units import same_modules
from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.finding import Finding
from gradmedic.errors import InputError
from gradmedic.record.arrays import Array, as_floats, to_numpy
from gradmedic.record.run import Run, open_run
from gradmedic.report.views.order import tensor_rows
from gradmedic.report.views.source import Source


def compare_runs(
    a: Run | str | os.PathLike[str],
    b: Run | str | os.PathLike[str],
    *,
    tolerance: float = 0.05,
    sustained: int = 10,
    lang: str = "en",
) -> Comparison:
    """Compare two runs.

    Steps are matched by their index (those of a restart among themselves), tensors by name, optimizers by name and
    then by order. Lengths, models, and the steps at which tables were kept may differ.

    Args:
        a, b: opened runs, or run folders.
        tolerance: curves part where they differ by more than this share of the larger one, > 0 ...
        sustained: ... for so many steps in a row, >= 1.
        lang: language of the findings, "en" or "zh".

    Returns:
        What is different, and from where on.

    Raises:
        InputError: there is no such run, or `tolerance` or `sustained` is out of range.

    Example:
        >>> compare_runs("runs/exp1", "runs/exp2").courses[0].partings  # doctest: +SKIP
        (Parting(column='loss', step=140, a=1.92, b=2.31),)
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must be a share between 0 and 1, such as 0.05; got {tolerance!r}")
    if sustained < 1:
        raise InputError(f"sustained must be at least 1 step; got {sustained!r}")
    runs = [_opened(run) for run in (a, b)]
    sources = [Source(run) for run in runs]
    pairs, only_a, only_b = paired(sources[0].optimizers, sources[1].optimizers)
    rows = tensor_rows(sources[0])
    courses: list[Course] = []
    layers: list[LayerDifference] = []
    for names in pairs:
        tables = CommonTables(sources[0], sources[1], names, rows)
        courses.append(_course(sources, names, tables, tolerance, sustained))
        layers += tables.layers()
    names_a, names_b = (_recorded(source) for source in sources)
    found = [diagnose(run, lang=lang) for run in runs]
    return Comparison(
        a=_name(runs[0], "A"),
        b=_name(runs[1], "B"),
        tolerance=tolerance,
        sustained=sustained,
        differences=tuple(differences((runs[0].meta, runs[1].meta), (sources[0].facts, sources[1].facts), pairs)),
        courses=tuple(courses),
        only_a=tuple(only_a),
        only_b=tuple(only_b),
        layers=tuple(sorted(layers, key=lambda layer: -layer.distance)),
        tensors=(len(names_a - names_b), len(names_b - names_a), len(names_a & names_b)),
        findings_a=_only(found[0], found[1]),
        findings_b=_only(found[1], found[0]),
        findings_both=_both(found[0], found[1]),
        costs=(_cost(sources[0]), _cost(sources[1])),
        problems=(tuple(runs[0].problems), tuple(runs[1].problems)),
    )


def _opened(run: Run | str | os.PathLike[str]) -> Run:
    opened = run if isinstance(run, Run) else open_run(run)
    if opened.problems and not opened.steps.num_rows:
        raise InputError(f"{opened.path} holds no readable run: {opened.problems[0]}")
    return opened


def _name(run: Run, default: str) -> str:
    return default if run.path is None else run.path.name


def _course(
    sources: list[Source], names: tuple[str, str], tables: CommonTables, tolerance: float, sustained: int
) -> Course:
    common = common_steps(sources[0], sources[1], names)
    first = first_difference(common, tables)
    count = len(common.steps)
    identical = (
        count > 0
        and first is None
        and tables.same_histograms()
        and same_modules(sources[0].modules, sources[1].modules, names)
    )
    return Course(
        a=names[0],
        b=names[1],
        steps=(common.whole_a.num_rows, common.whole_b.num_rows, count),
        last_common=int(common.steps[-1]) if count else None,
        identical=identical,
        first_difference=first,
        partings=tuple(partings(common, tolerance, sustained)),
        phases=tuple(phases(common)),
        clipped=(_share(to_numpy(common.whole_a["clipped"])), _share(to_numpy(common.whole_b["clipped"]))),
        skipped=(_share(to_numpy(common.whole_a["skipped"])), _share(to_numpy(common.whole_b["skipped"]))),
        skipped_alone=skipped_alone(common),
        lost=tuple(lost_in_both(common)),
    )


def _share(flags: Array) -> float:
    return float(flags.mean()) if len(flags) else 0.0


def _recorded(source: Source) -> set[str]:
    return {name for optimizer in source.optimizers for name in source.places(optimizer).names}


def _flat(findings: list[Finding]) -> dict[str, Finding]:
    """Return the first finding of each code, consequences included."""
    made: dict[str, Finding] = {}
    for finding in chain.from_iterable((finding, *finding.folded) for finding in findings):
        made.setdefault(finding.code, finding)
    return made


def _only(mine: list[Finding], other: list[Finding]) -> tuple[Finding, ...]:
    known = _flat(other)
    return tuple(finding for code, finding in _flat(mine).items() if code not in known)


def _both(a: list[Finding], b: list[Finding]) -> tuple[tuple[str, str, int, int], ...]:
    mine, other = _flat(a), _flat(b)
    return tuple((code, mine[code].title, mine[code].step, other[code].step) for code in mine if code in other)


def _cost(source: Source) -> Cost:
    taken, spent = as_floats(source.steps["step_seconds"]), as_floats(source.steps["overhead_seconds"])
    times = as_floats(source.steps["time"])
    known = np.isfinite(taken) & (taken > 0)
    both = known & np.isfinite(spent)
    return Cost(
        step_seconds=float(np.median(taken[known])) if known.any() else None,
        overhead=float(spent[both].sum() / taken[both].sum()) if both.any() else None,
        seconds=float(np.nanmax(times) - np.nanmin(times)) if np.isfinite(times).any() else None,
    )
