"""The two parts of a run's data: what comes from the scalars of the steps, and what from the tables of the tensors.

The first is cheap and can be made anew every second; the second reads millions of rows of a long run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradmedic.diagnosis import Finding
from gradmedic.diagnosis.ranks import one_of_several
from gradmedic.report.page.about import MOST_LOGGED, about, sizes
from gradmedic.report.page.boxes import box_entries
from gradmedic.report.page.curves import MOST_POINTS, kept_points
from gradmedic.report.page.heatmaps import grid_entries
from gradmedic.report.page.marks import marks_of
from gradmedic.report.page.pack import Packed, pack_floats, pack_integers
from gradmedic.report.page.tree import module_tree
from gradmedic.report.page.verdict import finding_entries, named_places, not_judged
from gradmedic.report.views.grids import TENSOR_GRIDS, Grid, tensor_grid
from gradmedic.report.views.heads import HeadSeries, head_series
from gradmedic.report.views.layers import LayerRow, layer_rows
from gradmedic.report.views.order import TensorRow, tensor_rows
from gradmedic.report.views.scalars import Scalars, clip_rate, lr_norm_correlation, scalars_of
from gradmedic.report.views.source import Floats, Integers, Source
from gradmedic.report.views.trouble import trouble_of

#: Beyond so many optimizers (one for each parameter, stepped within the backward pass), heatmaps join their steps …
MOST_BY_ITSELF = 8
#: … and only the first so many have curves.
MOST_WITH_CURVES = 32
#: Points of all curves together.
_ALL_POINTS = 150_000

Part = dict[str, Any]
Grids = dict[str, Grid]


def steps_part(source: Source, findings: Sequence[Finding]) -> Part:
    """Return what the page shows of the step table, the events and the findings."""
    scalars = scalars_of(source)
    marks, counts = marks_of(scalars, source.events)
    shown = {name: scalars[name] for name in source.optimizers[:MOST_WITH_CURVES]}
    curves = sum(len(each.columns) + min(len(each.logged), MOST_LOGGED) + 2 for each in shown.values())
    most = min(MOST_POINTS, max(60, _ALL_POINTS // max(1, curves)))
    return {
        "run": about(source, scalars),
        "optimizers": list(shown),
        "findings": finding_entries(findings),
        "scalars": {name: _curves(each, most) for name, each in shown.items()},
        "correlation": {name: _correlation(each) for name, each in shown.items()},
        "marks": marks,
        "mark_counts": counts,
    }


def tables_part(source: Source, findings: Sequence[Finding], columns: int) -> Part:
    """Return what the page shows of the tensor and module tables; "run" and "scalars" add to those of `steps_part`."""
    rows = tensor_rows(source)
    layers = layer_rows(rows)
    by_itself = len(source.optimizers) <= MOST_BY_ITSELF
    owners: list[str | None] = list(source.optimizers) if by_itself else [None]
    grids = [{each: tensor_grid(source, each, name, rows=rows) for each in TENSOR_GRIDS} for name in owners]
    places = named_places(findings)
    trouble = _trouble(rows, grids, [(severity, where) for severity, where, _ in places])
    return {
        "run": sizes(source, rows),
        "scalars": {name: _direction_curve(held) for name, held in zip(owners, grids, strict=True) if name is not None},
        "not_judged": not_judged(source),
        "alone": one_of_several(source.run),
        "tensors": _tensor_entries(rows, trouble, places),
        "layers": [_layer_entry(layer) for layer in layers],
        "grids": grid_entries(source, grids, rows, layers, columns),
        "boxes": box_entries(source, rows, owners),
        "heads": head_entries(source),
        "tree": module_tree(source.run.meta, rows, trouble),
    }


def _curves(scalars: Scalars, most: int) -> dict[str, Any]:
    drawn = dict(scalars.columns)
    if scalars.clipped.any() or any(
        np.isfinite(drawn[each]).any() for each in ("clip_threshold", "transform_threshold")
    ):
        drawn["clip_rate"] = clip_rate(scalars.clipped)
    for name in sorted(scalars.logged)[:MOST_LOGGED]:
        drawn[f"logged.{name}"] = scalars.logged[name]
    curves = {name: _curve(scalars.steps, values, scalars.parts, most) for name, values in drawn.items()}
    return {name: curve for name, curve in curves.items() if curve["step"]["n"][0]}


def _curve(steps: Integers, values: Floats, parts: Integers, most: int = MOST_POINTS) -> dict[str, Packed]:
    kept = kept_points(values, parts, most)
    return {"step": pack_integers(steps[kept]), "y": pack_floats(values[kept])}


def _direction_curve(grids: Grids) -> dict[str, Any]:
    norm = grids["norm"]
    curve = _curve(norm.steps, direction(norm.values, grids["cosine_prev"].values), norm.parts)
    return {"direction": curve} if curve["step"]["n"][0] else {}


def direction(norm: Floats, cosine: Floats) -> Floats:
    """Return the mean cosine between successive gradients at each step [S], weighted by the tensors' norms.

    Args:
        norm, cosine: [S, P]; tensors of which either is unknown or not finite are left out.

    Example:
        >>> direction(np.array([[1.0, 1.0]]), np.array([[1.0, 0.5]])).tolist()
        [0.75]
    """
    usable = np.isfinite(norm) & np.isfinite(cosine)
    weight = np.where(usable, norm, 0.0)
    largest = weight.max(axis=1, initial=0.0)
    weight = weight / np.where(largest > 0, largest, 1.0)[:, None]
    total = weight.sum(axis=1)
    mean = np.full(len(norm), np.nan)
    np.divide((weight * np.where(usable, cosine, 0.0)).sum(axis=1), total, out=mean, where=total > 0)
    return mean


def _correlation(scalars: Scalars) -> dict[str, Any]:
    """Return the correlation, over how many steps, and why there is none: "few", "still", "nonfinite"."""
    lr, norm = scalars.columns["lr"], scalars.columns["grad_norm"]
    value, n = lr_norm_correlation(lr, norm)
    if value is not None:
        return {"value": value, "n": n, "why": None}
    if int(np.isinf(norm).sum()) > n:
        return {"value": None, "n": n, "why": "nonfinite"}
    return {"value": None, "n": n, "why": "few" if n < 3 else "still"}


def _trouble(rows: list[TensorRow], grids: list[Grids], named: list[tuple[str, tuple[str, ...]]]) -> Floats:
    trouble = trouble_of(rows, findings=named)
    bare = trouble_of(rows)
    for held in grids:
        trouble += trouble_of(rows, held["norm"], held["zero_share"]) - bare
    return trouble


def _tensor_entries(
    rows: list[TensorRow], trouble: Floats, places: list[tuple[str, tuple[str, ...], str]]
) -> list[dict[str, Any]]:
    codes: dict[str, list[str]] = {}
    for _, where, code in places:
        for name in where:
            codes.setdefault(name, []).append(code)
    fields = tuple(TensorRow.__dataclass_fields__)
    entries = []
    for row, amount in zip(rows, trouble.tolist(), strict=True):
        named = [code for name in dict.fromkeys((row.name, row.module)) if name for code in codes.get(name, ())]
        entry = {name: getattr(row, name) for name in fields}
        entry |= {"shape": list(row.shape), "aliases": list(row.aliases)}
        entries.append(entry | {"trouble": round(amount, 4), "findings": list(dict.fromkeys(named))})
    return entries


def _layer_entry(layer: LayerRow) -> dict[str, Any]:
    return {"name": layer.name, "kind": layer.kind, "tensors": list(layer.tensors)}


def head_entries(source: Source) -> list[dict[str, Any]]:
    """Return the curves of the attention heads as JSON."""
    return [_head_entry(each) for each in head_series(source)]


def _head_entry(series: HeadSeries) -> dict[str, Any]:
    return {
        "module": series.module,
        "what": series.what,
        "labels": list(series.labels),
        "steps": pack_integers(series.steps),
        "values": pack_floats(series.values),
    }


def joined(steps: Mapping[str, Any], tables: Mapping[str, Any]) -> Part:
    """Return both parts as one; of what both speak of, the tables' numbers complete those of the steps."""
    run = {**steps["run"], **tables["run"]}
    run["thinned"] = bool(steps["run"]["thinned"] or tables["run"]["thinned"])
    scalars = {name: {**curves, **tables["scalars"].get(name, {})} for name, curves in steps["scalars"].items()}
    return {**steps, **tables, "run": run, "scalars": scalars}
