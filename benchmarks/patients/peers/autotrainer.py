"""AutoTrainer (Zhang et al., ICSE 2021; TDSC 2024).

Source: https://github.com/shiningrain/AUTOTRAINER, utils/monitor.py and the defaults of reproduce.py: beta1 1e-3,
beta2 1e-4, beta3 70, gamma 0.7, zeta 0.03, eta 0.2, delta 0.01, Theta 0.6, omega1 10.

It looks once an epoch, here every 20 steps; reports gradient problems only of a model whose accuracy is low or stands
still, only after 30 % of the training, and only one of them; and says no more once it has said something. It works on
accuracy, for which the share of a constant prediction's loss that is gone stands (`Trace.skill`).

Not to be had from a record: improper activation and improper loss (they compare the names of Keras layers and losses),
accuracies on a validation set.

What its problems are called here: abnormal data GM506, loss issue (a loss below zero) GM504 and GM502, explode GM302
(after a NaN GM201 too), dying ReLU GM303, vanish GM301, slow convergence GM402, oscillating loss GM401.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from benchmarks.patients.peers.trace import Array, Trace, number
from benchmarks.patients.peers.verdict import Verdict

PERIOD = 20
BETA1, BETA2, BETA3, GAMMA = 1e-3, 1e-4, 70.0, 0.7
ZETA, ETA, DELTA, THETA = 0.03, 0.2, 0.01, 0.6
#: A loss that counts as NaN, and the mean |output| of a hidden layer that counts as abnormal.
LARGE_LOSS, LARGE_OUTPUT = 1e3, 10.0
#: Share of the training after which accuracy is judged.
JUDGED_FROM = 0.3


def judge(trace: Trace) -> list[Verdict]:
    """Return what it says at the first epoch at which it says anything, the gravest problem first."""
    epochs, skill = _by_epoch(trace)
    seen: dict[str, Verdict] = {}
    for count, end in enumerate(epochs, start=1):
        for verdict in [*_of_values(trace, int(end)), *_of_gradients(trace, int(end))]:
            seen.setdefault(verdict.rule, verdict)
        found = _determined(seen, skill[:count], judged=count >= JUDGED_FROM * len(epochs))
        if found:
            return [replace(verdict, step=int(end)) for verdict in found]
    return []


def _by_epoch(trace: Trace) -> tuple[Array, Array]:
    """Return (last step of each epoch, mean skill in it)."""
    steps, skill = trace.skill()
    last = int(trace.steps.max()) if len(trace.steps) else -1
    ends, means = [], []
    for end in range(PERIOD - 1, last + 1, PERIOD):
        inside = skill[(steps > end - PERIOD) & (steps <= end)]
        if len(inside):
            ends.append(end)
            means.append(float(np.mean(inside)))
    return np.array(ends, dtype=np.int64), np.array(means)


def _determined(seen: dict[str, Verdict], skill: Array, *, judged: bool) -> list[Verdict]:
    found = [seen[rule] for rule in ("abnormal data", "loss below zero") if rule in seen]
    if "lost" in seen:
        return [*found, replace(seen["lost"], rule="explode")]
    if not judged:
        return found
    known = skill[np.isfinite(skill)]
    poor = not len(known) or float(known.max()) < THETA
    still = float(np.nanmax(np.diff(skill), initial=0.0)) < DELTA
    if poor or still:
        gradient = [seen[rule] for rule in ("dying ReLU", "explode", "vanish") if rule in seen]
        if gradient:
            found.append(gradient[0])
        elif poor and still and "abnormal data" not in seen:
            found.append(Verdict("slow convergence", ("GM402",), 0))
    if oscillates(skill):
        found.append(Verdict("oscillating loss", ("GM401",), 0))
    return found


def oscillates(skill: Array) -> bool:
    """Whether local maxima lie ZETA above the local minima of the same count, in a share ETA of the epochs."""
    inner = range(1, len(skill) - 1)
    tops = [skill[at] for at in inner if skill[at] >= skill[at - 1] and skill[at] >= skill[at + 1]]
    bottoms = [skill[at] for at in inner if skill[at] <= skill[at - 1] and skill[at] <= skill[at + 1]]
    swings = sum(bool(top - bottom >= ZETA) for top, bottom in zip(tops, bottoms, strict=False))
    return len(inner) > 0 and swings >= ETA * len(skill)


def _of_values(trace: Trace, end: int) -> list[Verdict]:
    """Return what the losses and outputs of the epoch that ends here show."""
    inside = (trace.steps > end - PERIOD) & (trace.steps <= end)
    loss, found = trace.loss[inside], []
    if (loss < 0).any():
        found.append(Verdict("loss below zero", ("GM504", "GM502"), end))
    if trace.lost[inside].any() or (loss >= LARGE_LOSS).any():
        sick = trace.tensors["nan_count"] + trace.tensors["inf_count"] > 0
        if sick[trace.table_steps <= end].any():
            found.append(Verdict("lost", ("GM302", "GM201"), end))
    outputs = list(trace.rows_of("output"))
    for row in outputs:
        hidden = row["module"] != outputs[-1]["module"] and end - PERIOD < row["step"] <= end
        if hidden and number(row, "mean_abs") >= LARGE_OUTPUT:
            found.append(Verdict("abnormal data", ("GM506",), end, (row["module"],)))
    return found


def _of_gradients(trace: Trace, end: int) -> list[Verdict]:
    at = int(np.searchsorted(trace.table_steps, end, side="right")) - 1
    kernels = trace.kernels()
    if at < 0 or not kernels:
        return []
    norms = trace.tensors["norm"][at]
    bottom, top = float(norms[kernels[0]]), float(norms[kernels[-1]])
    ratio = bottom / top if top > 0 else math.nan
    place = (trace.names[kernels[0]],)
    zeros, elements = np.nansum(trace.tensors["zero_count"][at]), np.nansum(trace.tensors["numel"][at])
    found = []
    if ratio < BETA1 and bottom < BETA2:
        found.append(Verdict("vanish", ("GM301",), end, place))
    if ratio > BETA3:
        found.append(Verdict("explode", ("GM302",), end, place))
    if elements and zeros / elements >= GAMMA:
        found.append(Verdict("dying ReLU", ("GM303",), end))
    return found
