"""SageMaker Debugger's built-in rules.

Source: https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html for parameters and defaults; the
rules themselves are closed, so they are written here from that description.

Read from a record: VanishingGradient, ExplodingTensor, DeadRelu, PoorWeightInitialization, WeightUpdateRatio, AllZero,
UnchangedTensor, LossNotDecreasing, ClassImbalance, CheckInputImages, NLPSequenceRatio. Not to be had from one:
SaturatedActivation (needs activations beyond 9.5, where a record counts from 0.97 on), Overfit, Overtraining and
Confusion (need a validation set), StalledTraining (by the clock), tree rules, TensorVariance (no default).

By default tensors are saved every 500 steps, which no run here reaches: the rules see every step that has a table.
ClassImbalance knows the largest class's share only, and takes the others as equal; CheckInputImages sees the batches of
the first steps, less than its 500 images; UnchangedTensor sees sampled coordinates. PoorWeightInitialization is read as
weights of unlike variance or gradients of a narrow range, together with a loss that does not fall: by the words of its
documentation either would do, and it would blame most healthy networks.

What the rules are called here: VanishingGradient GM301; ExplodingTensor GM201, GM302; DeadRelu GM303;
PoorWeightInitialization GM306, GM305; WeightUpdateRatio GM401 above, GM402 and GM106 below; AllZero GM301, GM303 and
GM101; UnchangedTensor GM106, GM111, GM205 and GM402; LossNotDecreasing GM401, GM402; ClassImbalance GM509;
CheckInputImages GM506; NLPSequenceRatio GM512.
"""

from __future__ import annotations

import math

import numpy as np
from benchmarks.patients.peers.trace import Array, Trace, first_run_of, number
from benchmarks.patients.peers.verdict import Verdict, by_time

VANISHING = 1e-7
DEAD_LAYER = 0.5
VARIANCE_RATIO, GRADIENT_RANGE, PATIENCE, INIT_STEPS = 10.0, 1e-3, 5, 10
LARGE_UPDATE, SMALL_UPDATE, EPSILON = 10.0, 1e-8, 1e-9
UNCHANGED_STEPS, RELATIVE, ABSOLUTE = 3, 1e-5, 1e-8
LOSS_STEPS = 10
IMBALANCE, MIN_LABELS = 10.0, 500
IMAGE_MEAN, SEQUENCE_SHARE = 0.2, 0.5
#: Width of a normal distribution between its 5th and its 95th percentile, in standard deviations.
_RANGE_OF_STD = 2 * 1.6449


def judge(trace: Trace) -> list[Verdict]:
    """Return its alarms in the order of time."""
    found = [
        *_tensor_alarms(trace),
        _exploding_loss(trace),
        _dead_relu(trace),
        _poor_initialization(trace),
        _loss_not_decreasing(trace),
        _class_imbalance(trace),
        *_inputs(trace),
    ]
    return by_time([verdict for verdict in found if verdict is not None])


def _first(trace: Trace, flags: Array, rule: str, *codes: str) -> Verdict | None:
    """Return the alarm of the first step at which any tensor is flagged [T, P], with the tensors of that step."""
    hit = flags.any(axis=1)
    if not hit.any():
        return None
    at = int(np.argmax(hit))
    places = tuple(trace.names[place] for place in np.flatnonzero(flags[at]))
    return Verdict(rule, codes, int(trace.table_steps[at]), places)


def _tensor_alarms(trace: Trace) -> list[Verdict | None]:
    tensors = trace.tensors
    if not len(trace.table_steps):
        return []
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = tensors["update_norm"] / (tensors["weight_norm"] + EPSILON)
        size = np.sqrt(tensors["numel"])
        still = tensors["update_norm"] <= ABSOLUTE * size + RELATIVE * tensors["weight_norm"]
        flags = {
            ("VanishingGradient", "GM301"): tensors["mean_abs"] < VANISHING,
            ("ExplodingTensor", "GM201", "GM302"): tensors["nan_count"] + tensors["inf_count"] > 0,
            ("AllZero", "GM301", "GM303", "GM101"): tensors["zero_count"] >= tensors["numel"],
            ("WeightUpdateRatio", "GM401"): ratio > LARGE_UPDATE,
            ("WeightUpdateRatio, small", "GM402", "GM106"): ratio < SMALL_UPDATE,
            ("UnchangedTensor", "GM106", "GM111", "GM205", "GM402"): _in_a_row(still, UNCHANGED_STEPS),
        }
    return [_first(trace, flag, *names) for names, flag in flags.items()]


def _in_a_row(flags: Array, length: int) -> Array:
    """Return where a flag [T, P] has been set `length` times in a row."""
    out = np.zeros_like(flags, dtype=bool)
    for place in range(flags.shape[1]):
        at = first_run_of(flags[:, place], length)
        if at is not None:
            out[at, place] = True
    return out


def _exploding_loss(trace: Trace) -> Verdict | None:
    sick = np.isinf(trace.loss)
    return (
        Verdict("ExplodingTensor, loss", ("GM201", "GM302"), int(trace.steps[np.argmax(sick)])) if sick.any() else None
    )


def _dead_relu(trace: Trace) -> Verdict | None:
    for row in trace.rows_of("activation"):
        share = number(row, "inactive_now") / number(row, "units")
        if share > DEAD_LAYER:
            return Verdict("DeadRelu", ("GM303",), int(row["step"]), (row["module"],))
    return None


def _poor_initialization(trace: Trace) -> Verdict | None:
    """Weights of unlike variance, or gradients of a narrow range, in a run whose loss does not fall at first."""
    kernels = trace.kernels()
    early = trace.loss[:INIT_STEPS]
    if not kernels or len(early) <= PATIENCE or not len(trace.table_steps):
        return None
    variance = trace.tensors["weight_norm"][0, kernels] ** 2 / trace.tensors["numel"][0, kernels]
    known = variance[np.isfinite(variance) & (variance > 0)]
    uneven = len(known) > 1 and known.max() / known.min() > VARIANCE_RATIO
    narrow = float(np.nanmin(trace.tensors["std"][0, kernels], initial=math.inf)) * _RANGE_OF_STD < GRADIENT_RANGE
    falling = early[1 : PATIENCE + 1].min() < early[0]
    if (uneven or narrow) and not falling:
        return Verdict("PoorWeightInitialization", ("GM306", "GM305"), PATIENCE)
    return None


def _loss_not_decreasing(trace: Trace) -> Verdict | None:
    looked = trace.loss[::LOSS_STEPS]
    rises = np.flatnonzero(~(looked[1:] < looked[:-1]))
    if not len(rises):
        return None
    return Verdict("LossNotDecreasing", ("GM401", "GM402"), int(trace.steps[::LOSS_STEPS][rises[0] + 1]))


def _class_imbalance(trace: Trace) -> Verdict | None:
    for row in trace.rows_of("loss"):
        classes, share = number(row, "classes"), number(row, "label_share")
        if (
            classes >= 2
            and number(row, "labels_seen") >= MIN_LABELS
            and share * (classes - 1) > IMBALANCE * (1 - share)
        ):
            return Verdict("ClassImbalance", ("GM509",), int(row["step"]))
    return None


def _inputs(trace: Trace) -> list[Verdict]:
    found = []
    for fact in trace.facts.inputs:
        if len(fact.shape) == 4 and abs(fact.mean) > IMAGE_MEAN:
            found.append(Verdict("CheckInputImages", ("GM506",), fact.step, (fact.name,)))
        if fact.mode_share is not None and fact.mode_share > SEQUENCE_SHARE:
            found.append(Verdict("NLPSequenceRatio", ("GM512",), fact.step, (fact.name,)))
    return [next(each for each in found if each.rule == rule) for rule in dict.fromkeys(each.rule for each in found)]
