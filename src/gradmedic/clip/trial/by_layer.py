"""Which modules drive the norm, and what methods that treat every tensor by itself do to each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradmedic.clip.trial.results import LayerNorms
from gradmedic.clip.trial.series import NormSeries
from gradmedic.clip.trial.simulate import Replay
from gradmedic.frame import Array

#: Share of the steps, those with the highest norms, that the leading module is looked for in.
_HIGHEST = 0.05

Groups = dict[str, list[int]]


def group_tensors(names: tuple[str, ...], modules: Mapping[str, str]) -> Groups:
    """Return module -> places of its own tensors, in the order of first appearance.

    Args:
        names: of the tensors.
        modules: tensor -> module, where it is known; else a name's last part is the tensor's own.
    """
    groups: Groups = {}
    for at, name in enumerate(names):
        groups.setdefault(modules.get(name, name.rpartition(".")[0]), []).append(at)
    return groups


def layer_norms(series: NormSeries, calm: Array, usable: Array, groups: Groups) -> tuple[LayerNorms, ...]:
    """Return the modules, those that lead among the highest norms first.

    Args:
        series: the norms; those with a table count.
        calm, usable: whether a step is finite and no spike; is finite; bool [S].
        groups: module -> places of tensors.
    """
    there = series.row >= 0
    if not (there & calm).any():
        return ()
    squares = np.stack([_joint(series.tensors[:, places]) ** 2 for places in groups.values()], axis=1)
    steady, every = squares[series.row[there & calm]], squares[series.row[there & usable]]
    totals = steady.sum(axis=1, keepdims=True)
    shares = np.divide(steady, totals, out=np.zeros_like(steady), where=totals > 0)
    sums = every.sum(axis=1)
    top = every[sums >= np.quantile(sums, 1 - _HIGHEST)]
    leads = np.bincount(top.argmax(axis=1), minlength=len(groups)) / len(top)
    found = [
        LayerNorms(
            name,
            len(places),
            float(np.sqrt(np.median(steady[:, at]))),
            float(np.sqrt(np.quantile(steady[:, at], 0.95))),
            float(np.median(shares[:, at])),
            float(leads[at]),
        )
        for at, (name, places) in enumerate(groups.items())
    ]
    return tuple(sorted(found, key=lambda layer: (-layer.leading_share, -layer.share)))


def layer_effects(done: Replay, series: NormSeries, usable: Array, groups: Groups) -> dict[str, tuple[float, float]]:
    """Return module -> (share of its steps in which a tensor of it was clipped, mean factor of its tensors)."""
    if done.factors is None:
        return {}
    counts = usable[done.places]
    seen = series.seen[series.row[done.places]][counts]
    factors = done.factors[counts]
    effects: dict[str, tuple[float, float]] = {}
    for name, places in groups.items():
        mine, there = factors[:, places], seen[:, places]
        if there.any():
            present = np.asarray(there.any(axis=1))
            clipped = ((mine < 1) & there)[present].any(axis=1)
            effects[name] = (float(clipped.mean()), float(mine[there].mean()))
    return effects


def _joint(norms: Array) -> Array:
    largest = norms.max(axis=1, keepdims=True, initial=0.0)
    unit = np.divide(norms, largest, out=np.zeros_like(norms), where=largest > 0)
    joint: Array = largest[:, 0] * np.sqrt((unit**2).sum(axis=1))
    return joint
