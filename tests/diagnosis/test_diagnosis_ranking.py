"""The ranking: its weights are data, its signs hold, and notes never come first."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.ranking import Weights, ranked, weights

codes = st.sampled_from(["GM101", "GM201", "GM301", "GM401", "GM501"])
severities = st.sampled_from(["info", "warning", "error", "critical"])


def finding(code="GM401", severity="warning", confidence=0.5, step=0, variant=""):
    return Finding(code, "name", severity, confidence, step, variant=variant)


def test_a_score_is_the_sum_that_the_file_says():
    held = Weights(1.5, 2.0, -0.5, {"4": 3.0}, {"GM402": 7.0}, {"GM402/late": 9.0})
    assert held.score(finding(step=3), 0) == pytest.approx(3.0 + 1.5 + 1.0 - 0.5 * math.log(4))
    assert held.prior("GM402") == 7.0
    assert held.prior("GM402", "late") == 9.0
    assert held.prior("GM999") == 3.0


def test_signs_of_the_weights():
    held = weights()
    assert held.severity >= 0
    assert held.confidence >= 0
    assert held.onset <= 0


@given(codes, severities.filter(lambda s: s != "info"), st.floats(0, 0.9), st.integers(0, 500))
def test_surer_and_earlier_never_rank_lower(code, severity, confidence, step):
    held = weights()
    base = held.score(finding(code, severity, confidence, step), 0)
    assert held.score(finding(code, severity, confidence + 0.1, step), 0) >= base
    assert held.score(finding(code, severity, confidence, step + 1), 0) <= base


@given(st.lists(st.builds(finding, codes, severities, st.floats(0, 1), st.integers(0, 500)), max_size=8))
def test_notes_come_last_and_nothing_is_lost(findings):
    order = ranked(findings)
    assert sorted(map(id, order)) == sorted(map(id, findings))
    assert [each.severity == "info" for each in order] == sorted(each.severity == "info" for each in order)


def test_a_loss_called_wrongly_precedes_the_rate_that_it_makes_look_wrong():
    wrong_loss, rate = finding("GM501", "error", 0.95), finding("GM401", "error", 0.85)
    assert ranked([rate, wrong_loss]) == [wrong_loss, rate]
