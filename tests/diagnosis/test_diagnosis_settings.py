"""GM206, GM407: settings that are wrong whatever the loss does; GM401 to GM403 said early; solved and relapsed runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, digits, fact, facts_event, frames, mlp, table, train
from diagnosis_judging import facts_with, judge, severities
from torch import nn

from gradmedic.diagnosis.loss import LossTracker

NAMES = [f"{place}.weight" for place in range(4)]
FLAT, FALLING = [2.3] * 120, list(np.linspace(2.3, 0.5, 120))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def moved(losses, update, *, weight=4.0, norm=1.0, kind="AdamW", settings=None, **common) -> FakeRun:
    """Four 8 x 8 matrices; `update`, `weight` and `norm` are L2 norms, of each step where they are lists."""
    known = facts_with([fact(name, (8, 8)) for name in NAMES], kind, **(settings or {}))
    made = frames(losses, **common)
    for step, frame in enumerate(made):
        columns = {"update_norm": update, "weight_norm": weight, "norm": norm}
        values = {key: value[step] if isinstance(value, list) else value for key, value in columns.items()}
        frame.tensors = table({key: [value] * 4 for key, value in values.items()} | {"numel": [64] * 4}, NAMES)
    return FakeRun(made, [facts_event(known)])


# GM206: an epsilon that was chosen. Gradient norm 1 over 64 elements: rms 1/8.


@pytest.mark.parametrize(
    ("eps", "update", "said"),
    [
        (2.0, 1e-3, [("warning", "chosen")]),  # 1/16 of epsilon, steps of 2.5e-4 of the weights
        (2.0, 8e-3, [("info", "note")]),  # the rate suits it: 2e-3
        (0.5, 1e-3, [("info", "note")]),  # 1/4 of epsilon
        (0.1, 1e-3, []),
        (1e-8, 1e-3, []),
    ],
)
def test_epsilon_is_judged_from_the_start(eps, update, said):
    found = judge(moved(FALLING, update, settings={"eps": eps}), "GM206")
    assert [(f.severity, f.variant) for f in found] == said
    for finding in found:
        assert finding.params["kept"] == pytest.approx(100 * 0.125 / (0.125 + eps))


def test_default_epsilon_under_small_gradients_is_no_choice():
    assert severities(moved(FALLING, 1e-3, norm=1e-10, settings={"eps": 1e-8}), "GM206") == []


def test_gradients_that_become_small_later_are_those_of_a_converged_run():
    norms = [1.0 if step < 101 else 1e-6 for step in range(200)]
    losses = list(np.linspace(2.3, 0.5, 200))
    assert severities(moved(losses, 1e-3, norm=norms, settings={"eps": 1e-2}), "GM206") == []


def test_warm_up_is_no_small_step():
    rates = [1e-3 * (step + 1) / 120 for step in range(120)]
    assert severities(moved(FALLING, 1e-3, settings={"eps": 2.0}, lr=rates), "GM206") == []


def test_perceptron_with_an_epsilon_of_one():
    model = mlp(3, activation=nn.Tanh)
    run = train(model, torch.optim.Adam(model.parameters(), 3e-3, eps=1.0), digits(32), 110)
    assert [(f.severity, f.variant) for f in judge(run, "GM206")] == [("warning", "chosen")]


def test_perceptron_with_a_rate_that_suits_its_epsilon():
    model = mlp(3, activation=nn.Tanh)
    run = train(model, torch.optim.Adam(model.parameters(), 1.0, eps=1.0), digits(32), 110)
    assert [f for f in judge(run, "GM206") if f.severity != "info"] == []


# GM407: a decay that forgets.


def test_decay_that_takes_a_fifth_of_the_weights_in_each_step():
    run = moved(FALLING, 0.85, settings={"weight_decay": 2.0})  # lr 0.1
    found = judge(run, "GM407")
    assert [(f.severity, f.variant) for f in found] == [("warning", "forgets")]
    assert found[0].params["taken"] == pytest.approx(20.0)
    assert found[0].params["memory"] == 5
    # |update| = 0.85 of which 0.8 is decay and, at right angles, 0.287 the gradient's.
    assert found[0].params["share"] == pytest.approx(100 * 0.8 / (0.8 + math.sqrt(0.85**2 - 0.8**2)))


@pytest.mark.parametrize(
    "run",
    [
        lambda: moved(FALLING, 0.1, settings={"weight_decay": 0.4}),  # 4 percent
        lambda: moved(FALLING, 4.0, settings={"weight_decay": 2.0}),  # the gradient moves more
        lambda: moved(FALLING, 0.85, settings={"weight_decay": 2.0}, kind="Adam"),  # divided by its own size
        lambda: moved(FALLING, 0.85, settings={}),
    ],
    ids=["slow", "outweighed", "through Adam", "none"],
)
def test_decay_that_leaves_something(run):
    assert severities(run(), "GM407") == []


def test_momentum_multiplies_the_decay_of_sgd():
    """0.1 * 0.1 / (1 - 0.9) = 10 percent."""
    run = moved(FALLING, 0.4, norm=0.1, kind="SGD", settings={"weight_decay": 0.1, "momentum": 0.9})
    assert judge(run, "GM407")[0].params["taken"] == pytest.approx(10.0)
    run = moved(FALLING, 0.4, norm=0.1, kind="SGD", settings={"weight_decay": 0.1, "momentum": 0.0})
    assert severities(run, "GM407") == []


def test_network_that_forgets_while_its_loss_falls():
    model = mlp(3)
    run = train(model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=15.0), digits(), 60)
    assert [(f.severity, f.variant) for f in judge(run, "GM407")] == [("warning", "forgets")]


# GM401, GM402, GM403 before a loss that does not fall can be told by itself.


def test_weights_moved_by_their_own_size_and_a_loss_above_its_start():
    raised = [2.3] * 5 + [2.8] * 15
    run = moved(raised, [1e-2] * 5 + [5.0] + [1.0] * 14)
    found = judge(run, "GM401")
    assert [(f.severity, f.step, f.params["harm"]) for f in found] == [("warning", 5, "@harm_raised")]
    assert severities(moved([2.3] * 20, [1e-2] * 5 + [5.0] + [1.0] * 14), "GM401") == []
    assert severities(moved(raised, [1e-2] * 5 + [3.0] + [1.0] * 14), "GM401") == []


def test_early_word_is_taken_back_when_the_loss_falls():
    losses = [2.3] * 5 + [2.8] * 15 + list(np.linspace(2.8, 0.5, 60))
    assert severities(moved(losses, [1e-2] * 5 + [5.0] + [1.0] * 14 + [1e-3] * 60), "GM401") == []


def test_problem_that_is_solved_in_its_first_steps():
    """L-BFGS: the loss stands still from step 5 on, with steps of any size and then none."""
    losses = [1.2, 0.8, 0.6, 0.52, 0.5] + [0.49] * 75
    for updates in ([2.0] * 10 + [0.05] * 70, [2.0] * 10 + [1e-9] * 70):
        assert severities(moved(losses, updates, kind="LBFGS"), "GM401", "GM402") == []
    searching = moved([0.5] * 80, [2.0] * 80, kind="LBFGS", settings={"line_search_fn": "strong_wolfe"})
    assert severities(searching, "GM401") == []
    assert severities(moved([0.5] * 80, [2.0] * 80, kind="LBFGS"), "GM401") == [("GM401", "warning")]


def clipped(losses, factor, kind="SGD") -> FakeRun:
    known = facts_with([fact(name, (8, 8)) for name in NAMES], kind)
    common = {"clip_scale": factor, "clipped": True, "clip_threshold": factor, "clip_frequency": 1.0}
    return FakeRun(frames(losses, **common), [facts_event(known)])


def test_clip_to_a_hundredth_is_told_within_fifty_steps():
    found = judge(clipped(FLAT[:50], 1e-3), "GM403")
    assert [(f.severity, f.step) for f in found] == [("warning", 0)]
    assert severities(clipped(FLAT[:50], 0.05), "GM403") == []
    assert severities(clipped(FALLING[:50], 1e-3), "GM403") == []
    assert severities(clipped(FLAT[:50], 1e-3, kind="AdamW"), "GM403") == []


def test_over_clipping_is_a_note_once_the_loss_falls():
    losses = [2.3] * 60 + list(np.linspace(2.3, 0.3, 290))
    assert severities(clipped(losses, 1e-3), "GM403") == [("GM403", "info")]


# A loss that had fallen.


@pytest.mark.parametrize(
    ("losses", "relapsed"),
    [
        ([4.0] * 5 + [2.3] * 60 + [3.9] * 60, True),
        ([4.0] * 5 + [2.3] * 60 + [2.5] * 60, False),
        ([4.0] * 5 + [3.8] * 60 + [4.0] * 60, False),
        (list(np.linspace(4.0, 1.0, 120)), False),
    ],
)
def test_relapse_is_losing_most_of_what_had_been_learned(losses, relapsed):
    tracker = LossTracker()
    for step, loss in enumerate(losses):
        tracker.update(float(loss), step)
    assert tracker.summary().relapsed is relapsed
    assert tracker.summary().start == losses[0]


def test_other_data_are_no_vanishing_gradient():
    """Gradients fade by 10 a layer; the loss falls, and is what it was at the start again after a change of data."""
    names = [f"{place}.weight" for place in range(6)]
    known = facts_with([fact(name, (8, 8), order=place) for place, name in enumerate(names)], "AdamW")
    for losses, said in (([3.7] * 100, ["GM301"]), ([3.7] * 5 + [2.3] * 60 + [3.7] * 60, [])):
        made = frames(losses)
        for frame in made:
            frame.tensors = table({"norm": [10.0**-place for place in range(6, 0, -1)], "numel": [64] * 6}, names)
        assert [f.code for f in judge(FakeRun(made, [facts_event(known)]), "GM301") if f.severity != "info"] == said


# GM410 and GM405 where two networks train against each other.


def duel(generator, discriminator, norms=None) -> FakeRun:
    """Frames of a discriminator "D" and a generator "G" in turn."""
    made = []
    for step, (ours, theirs) in enumerate(zip(generator, discriminator, strict=True)):
        for name, loss in (("D", theirs), ("G", ours)):
            frame = frames([loss], [1.0 if norms is None else norms[step]], optimizer=name)[0]
            frame.step, frame.time = step, 2.0 * step + (name == "G")
            made.append(frame)
    return FakeRun(made)


def test_winner_that_is_caught_up_with_has_not_won():
    norms = [1.0] * 20 + [1e-2] * 80
    won = duel([0.69] * 20 + [6.0] * 80, [1.386] * 20 + [0.01] * 80, norms)
    assert severities(won, "GM410") == [("GM410", "warning")]
    caught = duel([0.69] * 20 + [6.0] * 80 + [1.0] * 80, [1.386] * 20 + [0.01] * 80 + [1.2] * 80, norms + [1.0] * 80)
    assert severities(caught, "GM410") == []
