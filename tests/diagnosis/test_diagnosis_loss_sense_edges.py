"""What the rules about the loss's sense explain, and what explains them; and probe events on their own."""

from __future__ import annotations

import pytest
from diagnosis_frames import FakeRun, frames
from diagnosis_judging import judge

from gradmedic.diagnosis import Finding
from gradmedic.diagnosis.suppression import fold


def finding(code: str, variant: str = "", severity: str = "warning") -> Finding:
    return Finding(code, code, severity, 0.8, 0, variant=variant)


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (("GM504", ""), ("GM401", "")),
        (("GM504", ""), ("GM509", "")),
        (("GM514", ""), ("GM303", "")),
        (("GM514", ""), ("GM510", "")),
        (("GM303", ""), ("GM514", "prediction")),
        (("GM402", ""), ("GM510", "")),
        (("GM510", ""), ("GM509", "")),
    ],
)
def test_causes_and_consequences(cause, effect):
    for order in ((cause, effect), (effect, cause)):
        [root] = fold([finding(*each) for each in order])
        assert root.code == cause[0]
        assert [each.code for each in root.folded] == [effect[0]]


def event(probe: str, verdict: str, **numbers: float) -> dict:
    return {"kind": "probe", "probe": probe, "verdict": verdict, "step": 1, "time": 1.5, "numbers": numbers}


@pytest.mark.parametrize(
    ("code", "probe", "verdict", "numbers"),
    [
        ("GM504", "line", "ascends", {"loss": 2.0, "loss_at_0.1": 2.1}),
        ("GM513", "future", "leak", {"change": 0.4, "next_share": 1.0}),
        ("GM514", "input", "ignored", {"loss": 2.0, "loss_of_others": 2.0}),
    ],
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_probe_is_enough(code, probe, verdict, numbers, lang):
    run = FakeRun(frames([2.0, 2.0, 2.0]), [event(probe, verdict, **numbers)])
    [found] = judge(run, code, lang=lang)
    assert (found.code, found.variant, found.step) == (code, "probe", 1)
    assert found.confidence >= 0.9
    assert judge(FakeRun(frames([2.0, 2.0]), [event(probe, "uncertain", **numbers)]), code) == []
