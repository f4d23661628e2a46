"""TheDeepChecker (Ben Braiek, Khomh; TOSEM 2022).

Source: https://github.com/thedeepchecker/thedeepchecker, deep_checker/checkers.py, hooks.py and config/settings.yaml.
From step 10 on it checks every 10 steps. Its checks run while it fits a single batch, without regularisation; here they
see the training itself.

Read from a record: scale of inputs and regression targets, balance of labels, initial loss, values that are not finite,
dead and saturated activations and their spread (of activation modules), vanishing and exploding gradients, the ratio of
updates to weights, growing weights, a loss that stands still, diverges or fluctuates. Not to be had from one, since it
trains or evaluates again or needs every element: gradient check, fitting one batch, doubled batch, zeroed input, tests
of initial weights and biases, dead and negative weights, regularisation, train against eval, augmentation.

Read in its favour: inputs and targets count as normalised when a batch lies in [0, 1] or [-1, 1], or has mean 0 and
deviation 1 within 0.1; fluctuation is judged from 10 losses on. Ratios are of root mean squares, not of mean absolute
values.

What the checks are called here: inputs GM506, targets GM507, labels GM509, initial loss GM505, not finite GM201, dead
GM303, saturated GM304, spread GM306, gradients GM301 and GM302, updates GM401 and GM402, weights GM302 and GM401, loss
stagnates GM402 and GM401, diverges GM401, fluctuates GM401.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from benchmarks.patients.peers.trace import Array, Trace, number
from benchmarks.patients.peers.verdict import Verdict, by_time

START, PERIOD, WINDOW = 10, 10, 5
BALANCE, INITIAL_LOSS = 0.5, 1.0
DEAD, SATURATED, SPREAD = 0.5, 0.5, (0.5, 2.0)
SMALL_GRADIENT, LARGE_GRADIENT, DECAY, GROWTH = 1e-6, 1e6, 0.5, 2.0
LOG_UPDATES, LARGE_WEIGHT = (-4.0, -1.0), 1e8
FALL, DIVERGED, SMOOTH, SMOOTH_LOSSES, MIN_LOSSES = 0.05, 2.0, 0.5, 50, 10
_NORMAL = 0.1

_SATURATING = frozenset({"Tanh", "Sigmoid", "Softsign", "Hardtanh", "Hardsigmoid"})
_ACTIVATIONS = _SATURATING | {"ReLU", "LeakyReLU", "ELU", "SELU", "GELU", "SiLU", "Softplus", "ReLU6", "PReLU", "Mish"}
_CODES: dict[str, tuple[str, ...]] = {
    "gradient not finite": ("GM201",),
    "vanishing gradient": ("GM301",),
    "exploding gradient": ("GM302",),
    "updates too large": ("GM401",),
    "updates too small": ("GM402",),
    "diverging weights": ("GM302", "GM401"),
    "loss stagnates": ("GM402", "GM401"),
    "loss diverges": ("GM401",),
    "loss fluctuates": ("GM401",),
}


def judge(trace: Trace) -> list[Verdict]:
    """Return its alarms: those before the training, then those of the checks in the order of time."""
    before = [_inputs(trace), *_of_loss_call(trace)]
    during = [_lost(trace), *_activations(trace), *_tensors(trace), *_loss(trace)]
    return [each for each in before if each is not None] + by_time([each for each in during if each is not None])


# -- before the training -------------------------------------------------------------------------------------------


def _normalized(low: float, high: float, mean: float, std: float) -> bool:
    return (low >= -1 and high <= 1) or (abs(mean) <= _NORMAL and abs(std - 1) <= _NORMAL)


def _inputs(trace: Trace) -> Verdict | None:
    for fact in trace.facts.inputs:
        if "float" in fact.dtype and not _normalized(fact.minimum, fact.maximum, fact.mean, fact.std):
            return Verdict("inputs are not normalised", ("GM506",), 0, (fact.name,))
    return None


def _of_loss_call(trace: Trace) -> Iterator[Verdict]:
    for fact in trace.facts.losses[:1]:
        known = fact.numbers
        if fact.kind in ("mse", "l1", "smooth_l1", "huber"):
            values = [known.get(f"target_{name}", math.nan) for name in ("min", "max", "mean", "std")]
            if all(map(math.isfinite, values)) and not _normalized(*values):
                yield Verdict("targets are not normalised", ("GM507",), 0)
        classes = known.get("classes", 0.0)
        if fact.kind != "cross_entropy" or classes < 2:
            continue
        # The best constant prediction costs the entropy of the labels, whose exponential is their perplexity.
        if math.exp(known.get("baseline", math.inf)) / classes < BALANCE:
            yield Verdict("unbalanced labels", ("GM509",), 0)
        expected = math.log(classes)
        if abs(known.get("loss", expected) - expected) >= INITIAL_LOSS * expected:
            yield Verdict("initial loss", ("GM505",), 0)


# -- while training ------------------------------------------------------------------------------------------------


def _lost(trace: Trace) -> Verdict | None:
    if not trace.lost.any():
        return None
    return Verdict("loss not finite", ("GM201",), int(trace.steps[np.argmax(trace.lost)]))


def _checks(trace: Trace) -> Iterator[int]:
    """Yield the indices of tables at which a check falls due."""
    wanted = START
    for at, step in enumerate(trace.table_steps):
        if step >= wanted:
            yield at
            wanted = int(step) + PERIOD


def _tensors(trace: Trace) -> list[Verdict]:
    kernels = trace.kernels()
    found: dict[str, Verdict] = {}
    for at in _checks(trace):
        for rule, flags in _flags(trace, at, kernels).items():
            if flags.any() and rule not in found:
                names = tuple(trace.names[kernels[place]] for place in np.flatnonzero(flags))
                found[rule] = Verdict(rule, _CODES[rule], int(trace.table_steps[at]), names)
    return list(found.values())


def _flags(trace: Trace, at: int, kernels: list[int]) -> dict[str, Array]:
    """Return which weights [K] each rule flags at table `at`."""
    tensors = {key: values[max(0, at - PERIOD + 1) : at + 1, kernels] for key, values in trace.tensors.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        gradient, weight = tensors["mean_abs"][-WINDOW:], tensors["weight_norm"]
        rates = gradient[1:] / gradient[:-1]
        ratio = tensors["update_norm"] / weight
        updates = np.where(ratio > 0, np.log10(ratio), np.where(ratio == 0, 0.0, np.nan)).mean(axis=0)
        full = len(rates) == WINDOW - 1
        # Weights are measured every few steps, so that four doublings in a row are seen as one growth of 16 times.
        growth = weight[-1] / weight[-min(WINDOW, len(weight))]
        return {
            "gradient not finite": (tensors["nan_count"] + tensors["inf_count"])[-1] > 0,
            "vanishing gradient": (gradient[-1] < SMALL_GRADIENT) | (full & (rates <= DECAY).all(axis=0)),
            "exploding gradient": (gradient[-1] > LARGE_GRADIENT) | (full & (rates >= GROWTH).all(axis=0)),
            "updates too large": (updates > LOG_UPDATES[1]) & (updates != 0),
            "updates too small": (updates < LOG_UPDATES[0]) | (updates == 0),
            "diverging weights": (weight[-1] > LARGE_WEIGHT * np.sqrt(tensors["numel"][-1]))
            | (growth >= GROWTH ** (WINDOW - 1)),
        }


def _activations(trace: Trace) -> list[Verdict]:
    found: dict[str, Verdict] = {}
    for row in trace.rows:
        rule, code = _activation_rule(row, trace.kinds)
        if rule and row["step"] >= START:
            found.setdefault(rule, Verdict(rule, (code,), int(row["step"]), (row["module"],)))
    return list(found.values())


def _activation_rule(row: dict[str, object], kinds: dict[str, str]) -> tuple[str, str]:
    if row["what"] == "activation":
        units = number(row, "units")
        if number(row, "inactive_units") / units > DEAD:
            return "dead activations", "GM303"
        if number(row, "saturated_units") / units > SATURATED:
            return "saturated activations", "GM304"
    elif row["what"] == "output" and kinds.get(str(row["module"])) in _ACTIVATIONS:
        std = number(row, "std")
        if std < SPREAD[0] or std > SPREAD[1]:
            return "spread of activations", "GM306"
    return "", ""


def _loss(trace: Trace) -> list[Verdict]:
    """Judge the means over each period, as they come."""
    found: dict[str, Verdict] = {}
    losses: list[float] = []
    for end in range(PERIOD, len(trace.loss) + 1, PERIOD):
        losses.append(float(np.mean(trace.loss[end - PERIOD : end])))
        for rule, flag in _loss_flags(np.array(losses)).items():
            if flag:
                found.setdefault(rule, Verdict(rule, _CODES[rule], int(trace.steps[end - 1])))
    return list(found.values())


def _loss_flags(losses: Array) -> dict[str, bool]:
    recent = losses[-WINDOW:]
    full = len(recent) == WINDOW
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "loss stagnates": full and bool(((recent[:-1] - recent[1:]) / recent[:-1] < FALL).all()),
            "loss diverges": full and bool((recent[1:] / recent[:-1] >= DIVERGED).all()),
            "loss fluctuates": len(losses) >= MIN_LOSSES and smoothness(losses[-SMOOTH_LOSSES:]) < SMOOTH,
        }


def smoothness(loss: Array) -> float:
    """Return the share of neighbouring changes that go the same way; 1 for a monotone curve, 1/3 for noise."""
    changes = np.sign(np.diff(loss))
    return float(np.mean(changes[1:] == changes[:-1])) if len(changes) > 1 else 1.0
