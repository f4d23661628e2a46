"""One rank of several, seen without the records of the others."""

from __future__ import annotations

import math

import pytest
from diagnosis_frames import FakeRun, frames

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.ranks import one_of_several
from gradmedic.report.run_summary import summarize
from gradmedic.report.text import render_checkup

TWO = {"world": 2, "distributed": "gloo", "rank": 0}
ORIGIN = {"kind": "origin", "class": "elsewhere", "where": ["a.weight"], "step": 5, "time": 5.0, "optimizer": "SGD"}


def lost(meta) -> FakeRun:
    norms = [1.0] * 5 + [math.nan]
    return FakeRun(frames([1.0] * 6, norms), [ORIGIN], meta)


@pytest.mark.parametrize(("meta", "variant"), [(TWO, "elsewhere"), ({}, "backward")])
def test_what_came_with_the_reduction_has_no_local_cause_while_others_may_have_brought_it(meta, variant):
    [found] = [each for each in diagnose(lost(meta)) if each.code == "GM201"]
    assert found.variant == variant
    assert ("derivative of sqrt" in found.message) == (variant == "backward")


@pytest.mark.parametrize(("lang", "said"), [("en", "healthy as far as rank 0 can see"), ("zh", "就 rank 0 所见健康")])
def test_a_rank_alone_says_what_it_cannot_judge(lang, said):
    run = FakeRun(frames([1.0] * 6), [], TWO)
    assert one_of_several(run)
    summary = summarize(run)
    assert ("no_other_ranks", ("GM110", "GM516", "GM517")) in [(e.reason, e.codes) for e in summary.not_judged]
    text = render_checkup(run, [], lang=lang, width=200)
    assert said in text
    assert "--no-record" in text


def test_a_process_of_its_own_is_no_rank_of_several():
    run = FakeRun(frames([1.0] * 6), [], {"world": 1, "distributed": None})
    assert not one_of_several(run)
    assert "healthy: nothing found" in render_checkup(run, [])
