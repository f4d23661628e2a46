"""What large steps explain, and what they do not: old ones, data that change, losses that come down again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis_frames import FakeRun, fact, facts_event, frames, table
from diagnosis_judging import judge
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.diagnosis import Finding, diagnose
from gradmedic.diagnosis.large_steps import LargeSteps, Spell
from gradmedic.diagnosis.loss import LossTracker
from gradmedic.diagnosis.suppression import fold
from gradmedic.facts import Facts

CALM = [4.0 - 2.0 * i / 149 + 0.01 * (i % 5) for i in range(150)]
BACK = list(np.linspace(9.0, 2.5, 30)) + list(np.linspace(2.5, 1.0, 120))


def run_of(ratios, losses, norms=None) -> FakeRun:
    """One 8 x 8 matrix of norm 4 whose updates are `ratios` of it."""
    known = Facts(parameters={"a.weight": fact("a.weight", (8, 8))})
    made = frames(losses, norms)
    for frame, ratio in zip(made, ratios, strict=True):
        columns = {"norm": [1.0], "update_norm": [4 * ratio], "weight_norm": [4.0], "cosine_prev": [0.0]}
        frame.tensors = table(columns, ["a.weight"])
    return FakeRun(made, [facts_event(known)])


def said(run) -> list[tuple[str, str]]:
    return [(found.severity, found.variant) for found in judge(run, "GM401")]


@pytest.mark.parametrize("ratio", [1e-3, 0.03])
def test_other_data_from_a_step_on_are_no_learning_rate(ratio):
    """Adam's first steps are large; the loss jumps 150 steps later, and comes down while it is seen diverged."""
    losses = [*CALM, *BACK]
    ratios = [0.3] * 5 + [ratio] * (len(losses) - 5)
    assert said(run_of(ratios[:190], losses[:190])) == []
    assert said(run_of(ratios, losses)) == []


def test_loss_that_grows_step_by_step_is_blamed_on_steps_before_it():
    grown = [2.05 * 1.15**i for i in range(1, 40)]
    assert said(run_of([0.03] * 189, [*CALM, *grown])) == [("warning", "")]
    assert said(run_of([0.03] * 100 + [1e-3] * 89, [*CALM, *grown])) == []


def test_large_steps_long_ago_do_not_explain_a_nan():
    losses = [*CALM, *[math.nan] * 10]
    assert said(run_of([0.5] * 3 + [1e-3] * 157, losses)) == []
    assert said(run_of([1e-3] * 140 + [0.5] * 20, losses)) == [("error", "")]


def test_divergence_that_is_over_is_taken_back():
    up = [2.0 * 6.0**i for i in range(1, 6)]
    down = list(np.linspace(1e3, 1.0, 20)) + list(np.linspace(1.0, 0.5, 60))
    ratios = [0.2] * 155 + [1e-3] * 80
    assert said(run_of(ratios[:155], [*CALM, *up])) == [("error", "")]
    assert said(run_of(ratios, [*CALM, *up, *down])) == []
    stays = [*CALM, *up, *[500.0 + i % 3 for i in range(80)]]
    assert said(run_of(ratios, stays)) == [("error", "")]


def test_gradients_that_exploded_and_came_back_are_taken_back():
    losses = [*CALM, 50.0, 80.0, 70.0, *np.linspace(30.0, 1.0, 20), *np.linspace(1.0, 0.5, 60)]
    norms = [1.0 + 0.01 * (i % 3) for i in range(150)] + [500.0] * 5 + [1.0] * 78
    made = [float(loss) for loss in losses]
    assert [f.code for f in judge(run_of([1e-3] * 155, made[:155], norms[:155]), "GM302")] == ["GM302"]
    assert judge(run_of([1e-3] * len(made), made, norms), "GM302") == []


def test_nan_after_a_recovery_stands_on_its_own():
    up = [2.0 * 6.0**i for i in range(1, 6)]
    down = list(np.linspace(1e3, 1.0, 20)) + list(np.linspace(1.0, 0.5, 60))
    losses = [*CALM, *up, *down, *[math.nan] * 5]
    found = diagnose(run_of([0.2] * 155 + [1e-3] * 85, losses))
    assert (found[0].code, found[0].step) == ("GM201", 235)


def finding(code, step, harm="@harm_not_falling", variant="") -> Finding:
    return Finding(code, code, "warning", 0.7, step, "SGD", params={"harm": harm}, variant=variant)


@pytest.mark.parametrize(("harm", "listed"), [("@harm_not_falling", 2), ("@harm_diverged", 1)])
def test_steps_that_only_kept_a_run_from_learning_do_not_explain_its_nan(harm, listed):
    assert len(fold([finding("GM401", 0, harm), finding("GM201", 300, variant="loss")])) == listed


@pytest.mark.parametrize(("onset", "listed"), [(0, 2), (129, 1)])
def test_gradients_that_vanish_only_after_large_steps_follow_from_them(onset, listed):
    found = fold([finding("GM301", onset), finding("GM401", 0)])
    assert len(found) == listed
    assert (found[0].code == "GM401") == (listed == 1)


@pytest.mark.parametrize(("first", "step"), [(1.0, 99), (1e-6, 0)])
def test_when_gradients_began_to_vanish(first, step):
    """Six layers whose gradients span 1 to `first` at the start, and 1 to 1e-6 later."""
    names = [f"{layer}.weight" for layer in range(6)]
    known = Facts(parameters={n: fact(n, (8, 8), order=i) for i, n in enumerate(names)})
    made = frames([2.3 + 0.001 * (i % 3) for i in range(100)])
    for frame in made:
        depth = first if frame.step < 3 else 1e-6
        frame.tensors = table({"norm": np.logspace(math.log10(depth), 0, 6)}, names)
    [found] = judge(FakeRun(made, [facts_event(known)]), "GM301")
    assert found.severity == "error"
    assert found.step == step or (step and found.step >= 20)


@settings(deadline=None)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=60), st.integers(1, 8))
def test_spells_are_what_a_slow_count_says(ratios, memory):
    steps = LargeSteps(0.5, 1.0, memory)
    for step, ratio in enumerate(ratios):
        steps.add(step, ratio)
    above = [step for step, ratio in enumerate(ratios) if ratio > 0.5]
    assert steps.above == sum(ratio > 1.0 for ratio in ratios)
    if not above:
        assert steps.noticed == Spell()
        return
    first = above[-1]
    for step in reversed(above):
        if first - step <= memory:
            first = step
    assert (steps.noticed.first, steps.noticed.last) == (first, above[-1])
    assert steps.noticed.onset == ratios[first]
    assert steps.peak == max(ratios)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.5, 1.0, 40.0]), min_size=12, max_size=60))
def test_calm_counts_losses_since_the_last_diverged_one(losses):
    tracker = LossTracker()
    calm = 0
    for step, loss in enumerate(losses):
        tracker.update(loss, step)
        calm = 0 if tracker.diverged else calm + 1
        assert tracker.summary().calm == calm
