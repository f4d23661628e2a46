"""Counts and phrases of findings when a run has ended: of the whole run, and not of when they were first judged."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis_frames import FakeRun, frames
from diagnosis_judging import judge

from gradmedic.diagnosis.harm import Harm, at_the_end

FALLING = [2.0 - i / 1000 for i in range(100)]


@pytest.mark.parametrize(("until", "steps"), [(100, 97), (40, 37)])
def test_gradients_that_are_not_cleared_are_counted_to_the_end_or_until_they_are(until, steps):
    stale = [3 <= step < until for step in range(100)]
    [found] = judge(FakeRun(frames(FALLING, stale_grads=stale)), "GM107")
    assert (found.step, found.params["steps"], found.evidence[0].value) == (3, steps, steps)
    assert found.message.startswith(f"From step 3 on, for {steps} steps in a row")


def test_a_rate_of_zero_is_counted_to_the_end():
    [found] = judge(FakeRun(frames(FALLING, lr=0.0)), "GM111")
    assert (found.step, found.params["steps"]) == (0, 100)


def mode_run(norms: int, dropouts: int) -> FakeRun:
    made = frames(FALLING)
    counts = {"norms": norms, "norms_eval": norms, "dropouts": dropouts, "dropouts_eval": dropouts, "virgin": 0}
    for frame in [made[9], *made[20::20]]:
        extra = {"training": 0.0, "eval_steps": frame.step + 1.0, "train_steps": 0.0, **counts}
        frame.modules = ({"module": "", "what": "mode", "call": 0, "leaf": "model", "extra": extra},)
    return FakeRun(made, [])


@pytest.mark.parametrize(
    ("counts", "said", "gesagt"),
    [
        ((0, 1), "1 dropout is off", "1 个 dropout 处于"),
        ((2, 0), "2 batch normalisations are off", "2 个批归一化层处于"),
        ((2, 1), "2 batch normalisations and 1 dropout are off", "2 个批归一化层和 1 个 dropout 处于"),
    ],
)
def test_what_is_off_in_evaluation_mode_is_counted_as_it_was_last_seen_without_zeros(counts, said, gesagt):
    [found] = judge(mode_run(*counts), "GM109")
    assert "for 81 steps in a row, up to step 80" in found.message
    assert said in found.message
    assert gesagt in judge(mode_run(*counts), "GM109", lang="zh")[0].message


def test_harm_that_came_later_is_not_put_as_too_early_to_tell():
    assert at_the_end(Harm(mood="early"), note=False) == "@harm_short"
    assert at_the_end(Harm("not_falling"), note=False) == "@harm_not_falling"
    assert at_the_end(Harm("diverged", 3), note=True) == "@harm_later"
    assert at_the_end(Harm(mood="falling"), note=True) == "@harm_falling"


def odd_run(bad: tuple[int, ...], looked_at: tuple[int, ...]) -> FakeRun:
    rng = np.random.default_rng(0)
    losses = [1.0 + 0.1 * float(rng.random()) for _ in range(100)]
    norms = [2.0 + 0.2 * float(rng.random()) for _ in range(100)]
    for step in bad:
        losses[step], norms[step] = 1e8 + step, 1e5
    made = frames(losses, norms)
    for frame in made:
        if frame.step % 10 == 0 or frame.step in looked_at:
            top = 4e4 + frame.step if frame.step in bad else 4.0
            extra = {"count": 32.0, "rows": 32.0, "target_min": -top, "target_max": top}
            frame.modules = ({"module": "", "what": "loss", "call": 0, "leaf": "mse", "extra": extra},)
    return FakeRun(made, [])


def test_all_odd_batches_are_named_beside_ordinary_ones():
    bad = (40, 50, 51, 52, 70, 71)
    [found] = judge(odd_run(bad, (51, 52)), "GM508")
    assert found.step == 40
    assert "in ordinary batches at most 4." in found.message
    assert "So are those of steps 50, 51, 52 and 1 more." in found.message
    assert "At step 71 loss and gradient leapt in the same way; that batch was not looked at." in found.message
    assert "{" not in judge(odd_run(bad, (51, 52)), "GM508", lang="zh")[0].message


def test_one_odd_batch_is_named_alone():
    [found] = judge(odd_run((40,), ()), "GM508")
    assert found.message.endswith("in ordinary batches at most 4.")
