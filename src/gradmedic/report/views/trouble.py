"""How far each tensor is from healthy, so that the worst can come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gradmedic.report.views.grids import Grid
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Floats

#: What a finding adds, by severity, to the tensors that it names; half of it to the rest of their module.
_SEVERITY = {"info": 0.25, "warning": 1.0, "error": 2.0, "critical": 3.0}
_STATE = {"non-finite": 6.0, "zero": 1.5, "no gradient": 1.5, "unused": 1.0}
#: Decades that a norm may move before it counts, and what all further ones may add at most.
_DECADES, _MOST = 1.0, 2.0
#: Share of zeros that is usual behind a ReLU.
_ZEROS = 0.6
_WINDOW = 100
_BLAMED = 24

#: (severity, names of tensors or modules) of a finding.
Named = tuple[str, Sequence[str]]


def trouble_of(
    rows: Sequence[TensorRow], norm: Grid | None = None, zero_share: Grid | None = None, findings: Iterable[Named] = ()
) -> Floats:
    """Return how far each tensor is from healthy.

    Args:
        rows: the tensors [P].
        norm, zero_share: grids of the same run; None leaves out what they tell.
        findings: (severity, where) of each finding, folded ones included; `where` names tensors or modules.

    Returns:
        [P] float64 >= 0: 0 is fine, larger is worse, a gradient that is not finite is worst. A tensor's norm is held
        against its own early median, its fall also against that of the others: all gradients shrink as a model learns.

    Example:
        >>> trouble_of([TensorRow("a"), TensorRow("b", state="non-finite")]).tolist()
        [0.0, 6.0]
    """
    trouble = np.array([_STATE.get(row.state, 0.0) for row in rows], dtype=np.float64)
    places = {row.name: at for at, row in enumerate(rows)}
    for grid, judge in ((norm, _moved), (zero_share, _zeros)):
        if grid is None or not grid.values.size:
            continue
        found = judge(grid.values)
        for name, amount in zip(grid.names, found.tolist(), strict=True):
            if name in places:
                trouble[places[name]] += amount
    trouble += _blamed(rows, findings)
    frozen = np.array([row.state == "frozen" for row in rows], dtype=bool)
    trouble[frozen] = 0.0
    return trouble


def _moved(norms: Floats) -> Floats:
    window = max(1, min(_WINDOW, len(norms) // 4))
    early, late = (_log_median(part) for part in (norms[: 2 * window], norms[-window:]))
    # A gradient that has become zero has fallen without end; one that began as zero has only begun to flow.
    moved = np.subtract(late, early, out=np.zeros(len(early)), where=np.isfinite(early) & ~np.isnan(late))
    finite = moved[np.isfinite(moved)]
    trend = min(0.0, float(np.median(finite))) if len(finite) >= 4 else 0.0
    risen = np.maximum(moved - _DECADES, 0.0)
    fallen = np.maximum(trend - moved - _DECADES, 0.0)
    found: Floats = np.minimum(risen + fallen, _MOST)
    return found


def _log_median(norms: Floats) -> Floats:
    """Return log10 of the median of each column's finite values: minus infinity for zero, NaN where there are none."""
    ordered = np.sort(np.where(np.isfinite(norms), norms, np.nan), axis=0)  # NaN last
    count = (~np.isnan(ordered)).sum(axis=0)
    middle = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
    with np.errstate(divide="ignore"):
        logs: Floats = np.log10(middle)
    return logs


def _zeros(shares: Floats) -> Floats:
    late = shares[-max(1, min(_WINDOW, len(shares) // 4)) :]
    known = np.isfinite(late)
    mean = np.where(known, late, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    found: Floats = np.clip((mean - _ZEROS) / (1 - _ZEROS), 0.0, 1.0)
    return found


def _blamed(rows: Sequence[TensorRow], findings: Iterable[Named]) -> Floats:
    blame = np.zeros(len(rows))
    by_name: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        for name in {row.name, row.module, *row.aliases} - {""}:
            by_name.setdefault(name, []).append(at)
    for severity, where in findings:
        weight = _SEVERITY.get(severity, 0.0)
        for name in list(where)[:_BLAMED]:
            for at in by_name.get(name, ()):
                share = weight if name != rows[at].module else weight / 2
                blame[at] = max(blame[at], share)
    return blame
