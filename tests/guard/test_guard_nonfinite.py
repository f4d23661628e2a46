"""Skipping what is not finite, and ending training when it comes in a row."""

from __future__ import annotations

import math

import pytest
import torch
from guard_loop import halts, reasons, run, skips

import gradmedic as gm
from gradmedic.clip import Spec, chain, zclip
from gradmedic.clip.state import export_state, import_state
from gradmedic.guard import default, skip_nonfinite

NAN, INF = math.nan, math.inf


def test_gradients_and_losses():
    assert skips(skip_nonfinite(), [1.0, NAN, 2.0, INF, 0.0]) == [False, True, False, True, False]
    assert skips(skip_nonfinite(), [1.0] * 4, [1.0, NAN, -INF, None]) == [False, True, True, False]
    ((decision, _),) = run(skip_nonfinite(), [NAN])
    assert reasons(decision) == ["non-finite gradients or loss"]
    assert decision.operations == ()


def test_so_many_in_a_row_are_borne_and_one_more_is_not():
    bad = [NAN] * 3
    assert halts(skip_nonfinite(3), [*bad, 1.0, *bad, NAN, NAN]) == [False] * 7 + [True, True]
    assert halts(skip_nonfinite(0), [1.0, NAN]) == [False, True]
    last = run(skip_nonfinite(1), [NAN, NAN])[-1][0]
    (halt,) = last.halts
    assert halt.on_trip == "halt"
    assert halt.text == "more than 1 steps in a row had non-finite gradients or loss"
    assert bool(last.skip)


def test_the_count_goes_on_over_a_restart():
    guard = skip_nonfinite(3)
    state = run(guard, [NAN] * 3)[-1][1]
    again = import_state(guard.init(Spec.of_names(["w"])), export_state(state, ["w"]), ["w"])
    decision, _ = guard.update(gm.clip.GradientSummary.of_norms([NAN]), again)
    assert bool(decision.halts[0].flag)


def test_the_count_goes_on_when_another_guard_skips():
    guard = skip_nonfinite(5)
    before = guard.init(Spec.of_names(["w"]))
    _, after = guard.update(gm.clip.GradientSummary.of_norms([NAN]), before)
    assert guard.settle(before, after, torch.tensor(True)).shared["consecutive"].item() == 1


@pytest.mark.parametrize("number", [-1, 1.5, True, None, "3"])
def test_numbers_that_make_no_sense(number):
    with pytest.raises(gm.InputError, match="max_consecutive: expected a whole number of at least 0"):
        skip_nonfinite(number)


def test_the_recommended_protection():
    """Non-finite steps are skipped before the clip sees them, so that they enter no history."""
    transform = default()
    assert [type(part).__name__ for part in transform.transforms] == ["SkipNonfinite", "NormClip", "NormClip"]
    assert transform.may_skip
    assert transform.scope == "model"
    norms = [1.0] * 30 + [NAN, 100.0]
    found = run(transform, norms)
    assert [bool(decision.skip) for decision, _ in found] == [False] * 30 + [True, False]
    assert found[-1][0].scale.item() < 0.02
    assert default(2.0).transforms[1].threshold.number == 2.0
    assert default(chain(zclip(), 1.0)).transforms[1] == chain(zclip(), 1.0)
