"""Advice on clipping from a recorded run: what several methods would have done to it, and which one to take.

The recorded pre-clip norms go through the transforms of `gradmedic.clip` themselves, so that advice and action do not
differ. It is a replay: after the first step that a method changes, the true run would have gone another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradmedic.clip.thresholds.base import check_count
from gradmedic.clip.trial.by_layer import group_tensors, layer_norms
from gradmedic.clip.trial.candidates import LEFT_OUT, candidates
from gradmedic.clip.trial.health import Bound, find_bound, spike_levels
from gradmedic.clip.trial.outcome import Ground, try_out
from gradmedic.clip.trial.rates import drift_of, link_rates
from gradmedic.clip.trial.recommend import Measured, choose, reasons
from gradmedic.clip.trial.results import Note, OptimizerAdvice
from gradmedic.clip.trial.series import NormSeries, collect
from gradmedic.clip.trial.step_length import family_of
from gradmedic.facts import settings_of_groups
from gradmedic.frame import Array

#: Fewer steps than this say nothing.
LEAST_STEPS = 20
#: So many of the latest steps are tried by default.
STEPS = 5000
_PERCENTILES = (50, 75, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class ClipAdvice:
    """Advice on one run, for each of its optimizers; `str` gives one line each.

    Attributes:
        path: the run folder, None for a run in memory.
        optimizers: in the order of first appearance; empty when no step was recorded.
    """

    path: str | None
    optimizers: tuple[OptimizerAdvice, ...]

    def __getitem__(self, optimizer: str) -> OptimizerAdvice:
        """Return the advice for an optimizer by name; raises KeyError with the names there are."""
        for advice in self.optimizers:
            if advice.optimizer == optimizer:
                return advice
        raise KeyError(f"no optimizer {optimizer!r}; there are: {', '.join(a.optimizer for a in self.optimizers)}")

    def __str__(self) -> str:
        lines = []
        for advice in self.optimizers:
            known = advice.problem.key.replace("_", " ") if advice.problem is not None else "?"
            what = f"no advice ({known})" if advice.recommended is None else advice.recommended.expression
            lines.append(f"{advice.optimizer}: {what}")
        return "\n".join(lines) or "no optimizer step was recorded"


def advise(run: Any, *, steps: int = STEPS) -> ClipAdvice:
    """Return what several thresholds and methods would have done to a run, and which one is recommended.

    Args:
        run: anything with `events` and `frames()`: what `gm.open_run` returns, or a monitor's `run`.
        steps: the methods are tried on so many of the latest healthy steps, >= 20; a millisecond or so a step.

    Returns:
        The advice, as numbers; `gradmedic clip RUN` shows it. A run of which nothing can be said has a `problem` and no
        recommendation.

    Raises:
        InputError: `steps` is not a whole number of at least 20.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     for step in range(40):
        ...         model(torch.randn(8, 4)).square().mean().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> advise(monitor.run).optimizers[0].tried
        40
    """
    check_count(steps, "steps", LEAST_STEPS)
    events = list(run.events)
    facts = _facts(events)
    path = getattr(run, "path", None)
    found = [_advise_one(series, events, facts, steps) for series in collect(run.frames())]
    return ClipAdvice(None if path is None else str(path), tuple(found))


def _facts(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {}
    for event in events:
        if event.get("kind") == "facts":
            found = event.get("facts") or {}
    return found


def _advise_one(
    series: NormSeries, events: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], most: int
) -> OptimizerAdvice:
    entry = (facts.get("optimizers") or {}).get(series.optimizer) or {}
    kind = str(entry.get("class", ""))
    bound = find_bound(series, events)
    advice = OptimizerAdvice(series.optimizer, kind, family_of(kind), steps=len(series))
    problem = _problem(series, bound, kind)
    if problem is not None:
        return replace(advice, problem=problem)
    leading = series.between(0, bound.place)
    healthy = np.flatnonzero(leading.usable)
    tried = leading.between(int(healthy[-most:][0]), len(leading))
    ground = _ground(tried, advice.family, _shared_settings(entry), facts.get("parameters") or {})
    return _judged(advice, ground, [*_unguarded(series), *_notes(tried, bound, len(healthy))])


def _shared_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an optimizer that all its parameter groups share; the default of those that differ."""
    groups = settings_of_groups(entry)
    shared = {key: value for key, value in groups[0].items() if all(group.get(key) == value for group in groups)}
    return {**(entry.get("defaults") or {}), **shared}


def _ground(
    tried: NormSeries, family: str, defaults: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]]
) -> Ground:
    usable = tried.usable
    spikes, levels = np.zeros(len(tried), bool), np.full(len(tried), np.inf)
    spikes[usable], levels[usable] = spike_levels(tried.norm[usable])
    modules = {name: str(fact.get("module", "")) for name, fact in parameters.items()}
    return Ground(tried, usable, spikes, levels, family, defaults, group_tensors(tried.names, modules))


def _judged(advice: OptimizerAdvice, ground: Ground, notes: Iterable[Note]) -> OptimizerAdvice:
    """Return the advice with everything measured, tried and chosen."""
    tried, calm = ground.series, ground.usable & ~ground.spikes
    norms = tried.norm[calm]
    percentiles = {f"p{q}": float(np.percentile(norms, q)) for q in _PERCENTILES} | {"max": float(norms.max())}
    own = _own_clip(tried, ground.usable)
    tables = int((tried.row >= 0).sum()) >= LEAST_STEPS
    methods = candidates(percentiles, None if own is None else own[0], tables=tables)
    outcomes = tuple(try_out(method, ground) for method in methods)
    measured = Measured(
        family=advice.family,
        kind=advice.kind or advice.optimizer,
        percentiles=percentiles,
        spikes=tuple(int(step) for step in tried.step[ground.spikes]),
        rate=link_rates(tried.step[calm], tried.lr[calm], norms),
        drift=drift_of(norms),
        healthy=len(norms),
        own=own,
    )
    chosen = choose(outcomes, measured)
    return replace(
        advice,
        tried=int(ground.usable.sum()),
        healthy=measured.healthy,
        first=int(tried.step[0]),
        last=int(tried.step[-1]),
        percentiles=percentiles,
        spikes=measured.spikes,
        rate=measured.rate,
        drift=measured.drift,
        outcomes=outcomes,
        layers=layer_norms(tried, calm, ground.usable, ground.groups),
        recommended=chosen,
        reasons=tuple(reasons(chosen, outcomes, measured)),
        notes=tuple(notes),
    )


def _problem(series: NormSeries, bound: Bound, kind: str) -> Note | None:
    """Return why nothing can be said; None when something can."""
    steps = len(series)
    if kind == "LBFGS":
        return Note("lbfgs")
    if not series.known.any():
        return Note("no_gradients", {"n": steps})
    if series.skipped.all():
        return Note("all_skipped", {"n": steps})
    if not np.isfinite(series.norm[series.known]).any():
        return Note("all_nonfinite", {"n": steps})
    if not series.usable.any():
        made = series.known & ~series.skipped
        return Note("all_zero" if (series.norm[made] == 0).all() else "none_usable", {"n": steps})
    usable = int(series.usable[: bound.place].sum())
    if usable >= LEAST_STEPS:
        return None
    if bound.step is not None:
        return Note("fault_first" if bound.code else "departs_first", _where(bound) | {"n": usable})
    return Note("too_short", {"n": usable, "steps": steps, "least": LEAST_STEPS})


def _where(bound: Bound) -> dict[str, Any]:
    return {"step": bound.step, "code": bound.code}


def _own_clip(series: NormSeries, usable: Array) -> tuple[float, float, float] | None:
    """Return the threshold that the run had itself, where it was one number for most steps; share clipped, factor."""
    held = series.threshold[usable]
    held = held[np.isfinite(held) & (held > 0)]
    values, counts = np.unique(held, return_counts=True)
    if not len(held) or counts.max() < usable.sum() / 2:
        return None
    scale = np.nan_to_num(series.scale[usable], nan=1.0)
    return float(values[counts.argmax()]), float((scale < 1).mean()), float(scale.mean())


def _unguarded(series: NormSeries) -> Iterator[Note]:
    """Yield that steps were made with gradients that were not finite, against which no clip helps."""
    made = int((series.known & ~series.skipped & (series.nonfinite > 0)).sum())
    if made:
        yield Note("unguarded", {"n": made})


def _notes(tried: NormSeries, bound: Bound, healthy: int) -> Iterator[Note]:
    """Yield what the numbers rest on."""
    usable = tried.usable
    if bound.step is not None:
        yield Note("bound_finding" if bound.code else "bound_norm", _where(bound))
    unusable = int((~usable).sum())
    if unusable:
        yield Note("unusable", {"n": unusable})
    if usable.sum() < healthy:
        yield Note("latest", {"n": int(usable.sum()), "all": healthy})
    tables = int((usable & (tried.row >= 0)).sum())
    if tables < LEAST_STEPS:
        yield Note("no_tables")
    elif tables < usable.sum():
        yield Note("few_tables", {"n": tables, "all": int(usable.sum())})
    yield Note("left_out", {"methods": list(LEFT_OUT)})
    yield Note("replay")
