"""From a run's accuracies to what is reported of it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stability_statistics import Array, Interval, bootstrap, mean, ratio, wilson
from stability_store import Key, Run


@dataclass(frozen=True)
class Outcome:
    """Accuracy at the end, first look at which the target was reached (a step; inf: never), and whether it held."""

    key: Key
    final: float
    reached_at: float
    stable: bool


def published(run: Run, look: int) -> Run:
    """Return what the run would have been without the guard: the same until its first NaN batch, which ends it.

    Every weight is NaN after that step, since every gradient is; no method that is compared here prevents it.
    """
    if run.nan_at < 0:
        return run
    alive = tuple(a if (at + 1) * look <= run.nan_at else 0.0 for at, a in enumerate(run.accuracies))
    return replace(run, accuracies=alive)


def outcome(run: Run, target: float, look: int) -> Outcome:
    """Judge a run: it is stable when it is at its target at the last look."""
    reached = [(at + 1) * look for at, accuracy in enumerate(run.accuracies) if accuracy >= target]
    final = run.accuracies[-1]
    return Outcome(run.key, final, float(reached[0]) if reached else math.inf, final >= target)


def _groups(rows: Iterable[tuple[Key, tuple[float, ...]]]) -> list[Array]:
    """Gather rows by task and seed: the settings of one task and seed share their batches and first weights."""
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for key, row in rows:
        found.setdefault((key.task, key.seed), []).append(row)
    return [np.array(group) for group in found.values()]


def stable_share(outcomes: Sequence[Outcome]) -> Interval:
    """Return the share of stable runs."""
    return wilson(sum(each.stable for each in outcomes), len(outcomes))


def final_accuracy(outcomes: Sequence[Outcome]) -> Interval:
    """Return the mean accuracy at the end, dead runs counting as 0."""
    return bootstrap(_groups((each.key, (each.final,)) for each in outcomes), mean)


def epochs(outcomes: Sequence[Outcome], steps_per_epoch: Mapping[str, float]) -> Interval:
    """Return the mean number of epochs to the target, of the runs that are stable; epochs differ from task to task."""
    stable = [each for each in outcomes if each.stable]
    return bootstrap(_groups((each.key, (each.reached_at / steps_per_epoch[each.key.task],)) for each in stable), mean)


def pairs(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Return runs of the same task, setting and seed."""
    known = {each.key._replace(method=""): each for each in theirs}
    return [(each, known[k]) for each in ours if (k := each.key._replace(method="")) in known]


def epochs_ratio(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Interval:
    """Return epochs to the target over those of the other method, where both are stable."""
    both = [(a, b) for a, b in pairs(ours, theirs) if a.stable and b.stable]
    return bootstrap(_groups((a.key, (a.reached_at, b.reached_at)) for a, b in both), ratio)


def stable_difference(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Interval:
    """Return the difference of the stable shares over the same tasks, settings and seeds."""
    both = pairs(ours, theirs)
    return bootstrap(_groups((a.key, (float(a.stable) - float(b.stable),)) for a, b in both), mean)


def final_difference(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Interval:
    """Return the difference of the mean final accuracies over the same tasks, settings and seeds."""
    both = pairs(ours, theirs)
    return bootstrap(_groups((a.key, (a.final - b.final,)) for a, b in both), mean)
