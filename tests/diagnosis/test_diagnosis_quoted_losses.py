"""Every loss that a finding quotes can be found on the curve: a value at its step, or the median of its steps."""

from __future__ import annotations

import math
import re
from statistics import median

import pytest
from diagnosis_frames import FakeRun, fact, facts_event, frames, table
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.diagnosis import Draft, Engine, diagnose
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.harm import assess, quotes
from gradmedic.diagnosis.loss import LossTracker
from gradmedic.facts import Facts, LossFact
from gradmedic.frame import Frame

NUMBER = r"(-?[\d.]+(?:e[+-]\d+)?)"
VALUES = re.compile(NUMBER + r" at step (\d+)|第 (\d+) 步为 " + NUMBER)
MEDIANS = re.compile(NUMBER + r" in the median of steps (\d+)–(\d+)|第 (\d+)–(\d+) 步的中位数为 " + NUMBER)


def run_of(losses) -> FakeRun:
    """A regression whose targets are out of scale (GM507), and whose norms follow the losses."""
    numbers = {"target_rms": 900.0, "prediction_rms": 1.0, "prediction_std": 1.0, "target_mean": 900.0}
    facts = Facts(
        parameters={"out.weight": fact("out.weight")},
        losses=[LossFact(0, "mse", "out", numbers=numbers | {"target_std": 1.0})],
    )
    norms = [abs(loss) for loss in losses]
    tensors = table({"norm": [1.0]}, ["out.weight"])
    return FakeRun(frames(losses, norms, tensors=tensors), [facts_event(facts)])


COURSES = {
    "diverges and becomes NaN": [8760.0, *[7.9e3] * 19, *[7.8e3 * 3.0**k for k in range(12)], *[math.nan] * 6],
    "diverges": [2.0, 1.9, 1.8, *[1.7] * 20, *[1.7 * 2.0**k for k in range(12)]],
    "does not fall": [2.0 + 0.01 * (k % 5) for k in range(90)],
    "falls": [2.0 * 0.98**k for k in range(90)],
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("course", COURSES)
def test_what_is_quoted_is_on_the_curve(course, lang):
    losses = COURSES[course]
    (found,) = [f for f in diagnose(run_of(losses), lang=lang) if f.code == "GM507"]
    text = found.message + "".join(each.message for each in found.folded)
    quoted = 0
    for value, step, zh_step, zh_value in VALUES.findall(text):
        assert float(value or zh_value) == pytest.approx(losses[int(step or zh_step)], rel=5e-3)
        quoted += 1
    for value, first, last, zh_first, zh_last, zh_value in MEDIANS.findall(text):
        of = losses[int(first or zh_first) : int(last or zh_last) + 1]
        assert float(value or zh_value) == pytest.approx(median(of), rel=5e-3)
        quoted += 1
    assert quoted
    ended = {"en": "NaN or infinite from step 32 on", "zh": "从第 32 步起为 NaN"}[lang]
    assert (ended in found.message) == ("NaN" in course)
    assert in_language(in_language(found, "zh"), "en") == in_language(found, "en")


@given(st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=70))
@settings(deadline=None, max_examples=60)
def test_quotes_are_of_the_steps_that_they_name(losses):
    tracker = LossTracker()
    for step, loss in enumerate(losses):
        tracker.update(loss, 3 * step)
    said = tracker.summary()
    finite = [(3 * step, loss) for step, loss in enumerate(losses) if math.isfinite(loss)]
    made = quotes(said, assess(said, nonfinite_step=None, several=False))
    if not finite:
        assert (made["recent_from"], made["high_step"]) == (None, None)
        return
    assert (made["recent_from"], made["recent_to"]) == (finite[-20:][0][0], finite[-1][0])
    assert made["loss_recent"] == median(loss for _, loss in finite[-20:])
    assert (made["high_step"], made["loss_high"]) == max(finite[-3:], key=lambda each: each[1])


class Cause:
    """Says GM401 at step 0, and takes it back from step 5 on."""

    code, name, kind, needs = "GM401", "learning-rate-too-high", "symptom", frozenset()

    def evaluate(self, view):
        if view.frame.step == 0 and not view.final:
            numbers = {"ratio": 3.0, "lr": 0.3, "at_rate": "", "times": 300.0, "lower": 1e-3, "to_rate": ""}
            losses = {"harm": view.harm.phrase, "loss_first": 2.0, "loss_recent": 2.0}
            yield Draft("warning", 0.6, 0, params=numbers | losses)

    def holds(self, finding, view):
        return view.frame.step < 5


class Effect:
    """Says GM310 at step 3; `until` is the last step for which it stands."""

    code, name, kind, needs = "GM310", "attention-logits", "symptom", frozenset()

    def __init__(self, severity, until=10**9):
        self.severity, self.until = severity, until

    def evaluate(self, view):
        if view.frame.step == 3 and not view.final:
            numbers = {"value": 3e4, "first": 1.0, "share": 0.0, "unscaled": ""}
            losses = {"harm": view.harm.phrase, "loss_first": 2.0, "loss_recent": 2.0}
            yield Draft(self.severity, 0.9, 3, params=numbers | losses)

    def holds(self, finding, view):
        return view.frame.step <= self.until and not (view.final and self.until == 9)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("severity", "until", "listed"),
    [
        ("error", 10**9, [("GM401", ["GM310"])]),  # what has led to a fault that stands is not forgiven
        ("warning", 10**9, [("GM310", [])]),
        ("error", 6, []),
        ("error", 9, []),  # taken back at the very end: nothing is left that the cause stands for
    ],
)
def test_a_cause_stands_as_long_as_its_fault(severity, until, listed, order):
    engine = Engine(rules=[Cause(), Effect(severity, until)][::order], strict=True)
    for step in range(10):
        engine.on_frame(Frame(step, "SGD", loss=2.0, grad_norm=1.0))
    engine.finish()
    assert [(f.code, [each.code for each in f.folded]) for f in engine.findings()] == listed
