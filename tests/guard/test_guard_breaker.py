"""The circuit breaker."""

from __future__ import annotations

import math

import pytest
from guard_loop import halts, run, skips

import gradmedic as gm
from gradmedic.clip import chain, dry_run, norm
from gradmedic.guard import breaker

NAN, INF = math.nan, math.inf


def test_it_trips_above_its_limit_and_the_step_is_not_made():
    assert halts(breaker(10.0), [1.0, 10.0, 10.1]) == [False, False, True]
    assert skips(breaker(10.0), [1.0, 10.0, 10.1]) == [False, False, True]
    (halt,) = run(breaker(10.0), [11.0])[0][0].halts
    assert (halt.text, halt.on_trip) == ("grad_norm above 10, or not finite", "halt")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_not_finite_is_above_every_limit(bad):
    """Comparisons with NaN are false, whichever way round; here NaN counts as exceeding."""
    assert halts(breaker(1e30), [bad]) == [True]
    assert halts(breaker(1e30, "loss"), [1.0], [bad]) == [True]


def test_patience_counts_steps_in_a_row():
    found = halts(breaker(10.0, patience=3), [11, 11, 1, 11, NAN, 11, 11, 1])
    assert found == [False, False, False, False, False, True, True, False]
    assert "for 3 steps in a row" in run(breaker(10.0, patience=3), [1.0])[0][0].halts[0].text


def test_the_loss():
    guard = breaker(5.0, "loss")
    assert guard.needs == {"loss"}
    assert halts(guard, [1e9] * 4, [1.0, None, 6.0, -99.0]) == [False, False, True, False]


def test_an_unknown_loss_neither_counts_nor_forgives():
    assert halts(breaker(5.0, "loss", patience=2), [1.0] * 3, [6.0, None, 6.0]) == [False, False, True]


def test_it_sees_what_the_transforms_before_it_leave():
    assert halts(chain(norm(1.0), breaker(10.0)), [100.0]) == [False]
    assert halts(chain(breaker(10.0), norm(1.0)), [100.0]) == [True]


def test_the_way_out_is_handed_on():
    seen: list[str] = []
    for way in ("halt", "stop", seen.append):
        assert run(breaker(1.0, on_trip=way), [2.0])[0][0].halts[0].on_trip is way


def test_in_a_dry_run_nothing_ends():
    assert halts(dry_run(breaker(1.0)), [2.0]) == [False]
    assert run(dry_run(breaker(1.0)), [2.0])[0][0].notes["dry_run.skipped"].item() == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limit": -1.0}, "limit: expected a number > 0"),
        ({"limit": NAN}, "limit: expected a number > 0"),
        ({"patience": 0}, "patience: expected a whole number of at least 1"),
        ({"signal": "lr"}, "signal: expected one of grad_norm, loss"),
        ({"on_trip": "exit"}, 'on_trip: expected "halt", "stop" or a function'),
    ],
)
def test_arguments_that_make_no_sense(arguments, words):
    with pytest.raises(gm.InputError, match=words):
        breaker(**arguments)
