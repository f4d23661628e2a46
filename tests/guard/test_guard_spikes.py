"""Skipping outliers: only upwards, never for ever, and never remembered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from guard_loop import reasons, run, skips
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.clip import chain
from gradmedic.guard import skip_nonfinite, skip_spikes

NAN, INF = math.nan, math.inf
draw = np.random.default_rng(0)
USUAL = list(1 + 0.1 * draw.normal(size=200))


@pytest.mark.parametrize("robust", [True, False])
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(1.0, 6.0), st.integers(3, 20))
def test_against_numpy(robust, seed, z, window):
    """Window, minimum, unbiased deviation or median deviation, floor of 1 %, skipped steps left out."""
    norms = list(np.exp(0.7 * np.random.default_rng(seed).normal(size=40)))
    found = skips(skip_spikes("grad_norm", z, window, 3, robust=robust, max_consecutive=99), norms)
    past: list[float] = []
    for norm, skipped in zip(norms, found, strict=True):
        held = np.array(past[-window:])
        if len(held) < 3:
            assert not skipped
        else:
            middle = np.median(held) if robust else held.mean()
            spread = 1.4826 * np.median(np.abs(held - middle)) if robust else held.std(ddof=1)
            limit = middle + z * max(spread, 0.01 * abs(middle))
            assert skipped == (norm > limit) or norm == pytest.approx(limit, rel=1e-9)
        if not skipped:
            past.append(norm)


def test_a_short_window_needs_no_more_than_it_holds():
    assert skip_spikes(window=10).min_samples == 10
    assert skip_spikes().min_samples == 64
    assert skips(skip_spikes(window=5), [1.0] * 5 + [9.0]) == [False] * 5 + [True]


def test_a_spike_is_skipped_and_a_fall_is_not():
    found = skips(skip_spikes(), [*USUAL, 10.0, 1.0, 1e-6, 0.0, 1.0])
    assert found == [False] * 200 + [True, False, False, False, False]
    decision = run(skip_spikes(), [*USUAL, 10.0])[-1][0]
    assert reasons(decision) == ["grad_norm is a spike: more than 6 deviations above the last 128 steps"]


def test_nothing_is_skipped_before_there_are_enough_samples():
    assert skips(skip_spikes(min_samples=5, window=10), [1.0] * 4 + [1e9]) == [False] * 5


@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_bad_step_does_not_close_the_gate(bad):
    """In OLMo's optimizer a NaN stays in the window, and 128 steps in a row are skipped."""
    norms = [*USUAL[:80], bad, *USUAL[80:160]]
    assert skips(skip_spikes(), norms) == [False] * 80 + [True] + [False] * 80


def test_a_bad_step_before_the_gate_is_ready_is_not_remembered_either():
    assert skips(skip_spikes(min_samples=3, window=5), [1.0, NAN, 1.0, 1.0, 1.0, 99.0]) == [False] * 5 + [True]


def test_a_new_level_is_accepted_after_so_many_steps_in_a_row():
    """A guard that never locks a run up: the history begins anew from the new level."""
    guard = skip_spikes(min_samples=5, window=20, max_consecutive=4)
    found = skips(guard, [1.0] * 20 + [50.0] * 30)
    assert found == [False] * 20 + [True] * 4 + [False] * 26
    ring = run(guard, [1.0] * 20 + [50.0] * 7)[-1][1].parts["history"].shared
    assert ring["count"].item() == 3
    assert set(ring["values"].tolist()) == {50.0, INF}


def test_non_finite_steps_are_no_new_level():
    found = skips(skip_spikes(min_samples=5, window=20, max_consecutive=2), [1.0] * 10 + [NAN] * 6 + [1.0, 1.0])
    assert found == [False] * 10 + [True] * 6 + [False] * 2


def test_the_loss():
    losses = [2.0 + 0.1 * (step % 2) for step in range(20)]
    guard = skip_spikes("loss", z=5.0, window=20, min_samples=5)
    assert guard.needs == {"loss"}
    assert skips(guard, [1.0] * 22, [*losses, 9.0, NAN]) == [False] * 20 + [True, True]
    assert skips(guard, [1.0, 1e9, NAN] * 8, [None] * 24) == [False] * 24
    negative = [-5.0 - 0.01 * (step % 3) for step in range(20)]
    assert skips(guard, [1.0] * 22, [*negative, -4.0, -9.0])[-2:] == [True, False]


def test_zero_gradients_are_no_level():
    """After a hundred steps without any gradient (a masked loss) the first one is no spike."""
    assert not any(skips(skip_spikes(min_samples=5, window=20), [0.0] * 100 + [1.0] * 20))


def test_what_another_guard_has_skipped_is_not_remembered():
    transform = chain(skip_spikes(min_samples=3, window=9), skip_nonfinite())
    losses = [1.0, 1.0, NAN, 1.0]
    ring = run(transform, [1.0, 2.0, 3.0, 4.0], losses)[-1][1].parts["0"].parts["history"].shared
    assert ring["values"][:4].tolist() == [1.0, 2.0, 4.0, INF]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"signal": "norm"}, "signal: expected one of grad_norm, loss, got 'norm'"),
        ({"z": 0}, "z: expected a number > 0"),
        ({"window": 10, "min_samples": 11}, "min_samples: expected at most the window"),
        ({"max_consecutive": 0}, "max_consecutive: expected a whole number of at least 1"),
    ],
)
def test_arguments_that_make_no_sense(arguments, words):
    with pytest.raises(gm.InputError, match=words):
        skip_spikes(**arguments)
