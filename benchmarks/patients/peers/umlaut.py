"""UMLAUT (Schoop, Huang, Hartmann; CHI 2021).

Source: https://github.com/BerkeleyHCI/umlaut, umlaut/heuristics.py.

Read from a record: inputs outside [-1, 1], inputs that are not floating, a loss that is NaN, a learning rate above 0.01
or below 1e-7 (in some versions of it). Not to be had from one: overfitting and a validation accuracy above 95 % (need a
validation set), missing softmax (`from_logits` of Keras; losses of PyTorch want logits), missing activations and
dropout above 0.5 (the settings of modules), images that are not square (no fault of this benchmark).

What the rules are called here: input range GM506, input type GM202, NaN loss GM201 (GM202 where the input holds NaN),
learning rate GM401 and GM402 (GM111 where it is zero).
"""

from __future__ import annotations

import numpy as np
from benchmarks.patients.peers.trace import Trace
from benchmarks.patients.peers.verdict import Verdict, by_time

RANGE = 1.0
HIGH_RATE, LOW_RATE = 0.01, 1e-7


def judge(trace: Trace) -> list[Verdict]:
    """Return its alarms in the order of time."""
    found: dict[str, Verdict] = {}
    for fact in trace.facts.inputs:
        place = (fact.name,)
        if "float" not in fact.dtype:
            found.setdefault("type", Verdict("input is not floating", ("GM202",), fact.step, place))
        elif fact.minimum < -RANGE or fact.maximum > RANGE:
            found.setdefault("range", Verdict("input outside [-1, 1]", ("GM506",), fact.step, place))
    sick = any(fact.nan_count for fact in trace.facts.inputs)
    for rule, codes, flags in (
        ("NaN in loss", ("GM201", "GM202") if sick else ("GM201",), trace.lost),
        ("learning rate too high", ("GM401",), trace.lr > HIGH_RATE),
        ("learning rate too low", ("GM402", "GM111"), trace.lr < LOW_RATE),
    ):
        if flags.any():
            found[rule] = Verdict(rule, codes, int(trace.steps[np.argmax(flags)]))
    return by_time(list(found.values()))
