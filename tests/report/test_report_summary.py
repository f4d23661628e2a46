"""The numbers under the verdict: one line for each optimizer and process, skipped steps left out, words that agree."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnosis"))

from diagnosis_frames import FakeRun, fact, facts_event, frames

from gradmedic.diagnosis import Finding, diagnose
from gradmedic.facts import Facts
from gradmedic.report.run_summary import summarize
from gradmedic.report.text import render_checkup, render_findings


def gan() -> FakeRun:
    pairs = zip(
        frames([1.4, 1.2, 1.0], [3.0, 2.0, 1.0], optimizer="od", lr=0.2),
        frames([0.7, 0.8, 0.9], [30.0, 20.0, 10.0], optimizer="og", lr=0.1),
        strict=True,
    )
    return FakeRun([frame for pair in pairs for frame in pair])


def diverged(optimizer="SGD") -> FakeRun:
    losses = [2.0 - 0.01 * i for i in range(60)] + [10.0 ** (i + 1) for i in range(8)] + [math.nan] * 5
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)] + [10.0 ** (i + 1) for i in range(8)] + [math.nan] * 5
    return FakeRun(frames(losses, norms, optimizer=optimizer))


def test_each_optimizer_has_its_own_line():
    made = {series.optimizer: series for series in summarize(gan()).series}
    assert (made["od"].loss, made["od"].lr, made["od"].norms) == ((1.4, 1.0), (0.2, 0.2), (3.0, 2.0, 1.0))
    assert (made["og"].loss, made["og"].lr, made["og"].norms) == ((0.7, 0.9), (0.1, 0.1), (30.0, 20.0, 10.0))
    lines = render_checkup(gan(), [], width=120).splitlines()
    (line,) = (line for line in lines if line.startswith("  od "))
    assert line.split(maxsplit=1)[1].startswith("3 steps, loss 1.4 → 1, learning rate 0.2, gradient norm 3 → 2 → 1")
    assert not any(line.startswith("  loss") for line in lines)


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [
        ((0.0, 1e-3), (0.0, 1e-3), "0 | 0.001"),
        ((1e-3, 1e-3), (1e-3, 1e-3), "0.001"),
        ((1e-3, 0.1), (0.0, 0.0), "0.001 | 0.1 → 0"),
        (tuple(0.1 / 2**i for i in range(6)), tuple(0.1 / 2**i for i in range(6)), "0.00313 … 0.1"),
    ],
)
def test_the_rates_of_all_groups_are_shown_where_they_differ(first, last, shown):
    made = frames([2.0, 1.0], lr=[first[0], last[0]], lrs=[first, last])
    text = render_checkup(FakeRun(made), [], width=120)
    (line,) = (line for line in text.splitlines() if line.strip().startswith("learning rate"))
    assert line.split(maxsplit=2)[2].strip() == shown


def test_each_process_has_its_own_line():
    """Processes are read one after the other: steps begin anew."""
    run = FakeRun(frames([4.0, 3.0]) + frames([2.0, 1.0]))
    assert [(s.process, s.loss) for s in summarize(run).series] == [(1, (4.0, 3.0)), (2, (2.0, 1.0))]
    text = render_checkup(run, [], width=120)
    assert "SGD, process 1  2 steps, loss 4 → 3" in text
    assert "SGD, process 2  2 steps, loss 2 → 1" in text


def test_many_processes_stay_on_one_screen():
    run = FakeRun([frame for _ in range(20) for frame in frames([2.0, 1.0])])
    text = render_checkup(run, [], width=120)
    assert text.count("process") == 6
    assert "14 more" in text


@pytest.mark.parametrize(("skipped", "said"), [([0, 1], "without 2 skipped steps"), ([0], "without 1 skipped step)")])
def test_skipped_steps_have_no_norm(skipped, said):
    norms = [math.nan if step in skipped else 1.0 for step in range(9)]
    run = FakeRun(frames([2.0] * 9, norms, skipped=[step in skipped for step in range(9)]))
    assert summarize(run).series[0].norms == (1.0, 1.0, 1.0)
    assert said in render_checkup(run, [], width=160)


def test_consequences_are_shown_in_every_format():
    run = diverged()
    found = diagnose(run)
    assert [f.code for f in found[0].folded] == ["GM201"]
    data = json.loads(render_findings(found, "json", run))["findings"][0]
    assert data["folded"] == [{"code": "GM201", "name": "nonfinite", "where": [], "step": 68}]
    assert Finding.from_json(data).folded[0].step == 68
    line = "  also: GM201 NaN or infinity, step 68: follows from it"
    assert line in render_checkup(run, found).splitlines()
    assert line in render_findings(found, "text", run).splitlines()
    assert "- GM201 NaN or infinity, step 68" in render_findings(found, "markdown", run)
    assert "  另：GM201 出现 NaN 或无穷大，第 68 步：由此引起" in render_checkup(run, found, lang="zh").splitlines()


def test_findings_name_their_optimizer_where_there_are_several():
    run = diverged("od")
    other = frames([1.0] * 73, optimizer="og")
    for frame in other:
        frame.loss = None
    both = FakeRun([frame for pair in zip(run.recorded, other, strict=True) for frame in pair])
    text = render_checkup(both, diagnose(both), width=120)
    assert "GM302 error  Exploding gradient (od)" in text
    assert "(SGD)" not in render_checkup(diverged(), diagnose(diverged()), width=120)


def test_numbers_and_nouns_agree():
    one = FakeRun(frames([2.0], [9.0]), [facts_event(Facts(parameters={"a": fact("a", (1,))}))])
    text = render_checkup(one, diagnose(one, limits=1.0))
    assert text.startswith("gradmedic: 1 finding in 1 step\n")
    assert "1 step, 0 s, 1 tensor, 1 parameter\n" in text
    assert "0 steps" not in text
    assert render_checkup(FakeRun(frames([2.0])), []).startswith("gradmedic: healthy: nothing found in 1 step\n")


def test_healthy_run_asks_for_no_further_command(tmp_path):
    run = FakeRun(frames([2.0, 1.0]))
    run.path = tmp_path  # type: ignore[attr-defined]
    assert "gradmedic diagnose" not in render_checkup(run, [])


def test_evidence_is_named_in_the_language_of_the_text_and_in_english_in_json():
    found = diagnose(diverged(), lang="zh")
    markdown = render_findings(found, "markdown", lang="zh")
    assert "| 裁剪前梯度范数 |" in markdown
    assert "pre-clip" not in markdown
    assert json.loads(render_findings(found, "json", lang="zh"))["findings"][0]["evidence"][0]["name"] == (
        "pre-clip gradient norm"
    )


def clipped_run(steps, factor, *, step_seconds=0.003, own=0.00009):
    made = frames([2.0] * steps, [1.0 / factor] * steps)
    for frame in made:
        frame.clipped, frame.clip_scale, frame.clip_threshold = True, factor, 1.0
        frame.step_seconds, frame.overhead_seconds = step_seconds, own
    return FakeRun(made)


def test_clipping_tells_its_factor_and_when_it_is_too_soon_to_judge():
    """Healthy beside "clipped 100 %" reads as a contradiction, unless it says that GM403 has not looked yet."""
    soon = render_checkup(clipped_run(16, 0.02), [], width=200)
    assert "16 steps (100%), median factor 0.02; whether that is too much is judged from 50 steps on" in soon
    assert "16 步（100%），系数中位数 0.02；满 50 步后才判断" in render_checkup(
        clipped_run(16, 0.02), [], lang="zh", width=200
    )
    for steps, factor in ((50, 0.02), (16, 0.5)):
        text = render_checkup(clipped_run(steps, factor), [], width=200)
        assert f"{steps} steps (100%), median factor {factor}" in text
        assert "judged from" not in text


def test_the_last_loss_is_not_that_of_a_skipped_step():
    """A guard that skips a bad last batch leaves a training that went well."""
    run = FakeRun(frames([2.0, 1.0, 0.5, math.nan], skipped=[False, False, False, True]))
    [series] = summarize(run).series
    assert series.loss == (2.0, 0.5)
    run = FakeRun(frames([math.nan] * 2, skipped=[True] * 2))
    assert all(math.isnan(loss) for loss in summarize(run).series[0].loss)


def test_single_nonfinite_norms_leave_the_medians_and_are_counted():
    norms = [1.0, 1.0, math.nan, 2.0, 2.0, math.inf, 3.0, 3.0, math.nan]
    run = FakeRun(frames([2.0] * 9, norms))
    assert summarize(run).series[0].norms == (1.0, 2.0, 3.0)
    assert "1 → 2 → 3" in render_checkup(run, [], width=160)
    assert "NaN or infinite in 3 steps" in render_checkup(run, [], width=160)
    assert "其中 3 步为 NaN 或无穷大" in render_checkup(run, [], width=160, lang="zh")
    broken = FakeRun(frames([2.0] * 6, [1.0, 1.0, 1.0, 1.0, math.nan, math.nan]))
    assert "1 → 1 → NaN" in render_checkup(broken, [], width=160)


def test_skipped_steps_have_no_factor():
    run = clipped_run(4, 0.25)
    run.recorded[0].skipped, run.recorded[0].clip_scale = True, 0.0
    run.recorded[1].clip_scale = math.nan
    assert summarize(run).clip_factor == 0.25


@pytest.mark.parametrize(
    ("steps", "step_seconds", "own", "says", "silent"),
    [
        (100, 0.003, 0.0018, "60% of the step time (1.8 ms of 3 ms a step): a fixed cost", "--steps"),
        (400, 0.003, 0.0018, "--steps 300 is enough for a check-up", "never"),
        (100, 0.003, 0.0003, "10% of the step time", "fixed"),
        (100, 3.0, 1.8, "60% of the step time", "fixed"),
    ],
)
def test_watching_that_costs_much_of_short_steps_says_why(steps, step_seconds, own, says, silent):
    run = clipped_run(steps, 0.5, step_seconds=step_seconds, own=own)
    assert summarize(run).step_seconds == pytest.approx(step_seconds)
    text = render_checkup(run, [], width=200)
    assert says in text
    assert silent not in text


def rates(made, lang="en", **values):
    text = render_checkup(FakeRun(frames([1.0] * len(made), lr=made, **values)), [], width=120, lang=lang)
    (line,) = (line for line in text.splitlines() if line.strip().startswith(("learning rate", "学习率")))
    return line.split(maxsplit=2 if lang == "en" else 1)[-1]


def test_a_peak_of_the_learning_rate_between_its_ends_is_told():
    assert rates([0.00012, 0.001, 0.003, 1.2e-08]) == "0.00012 → 0.003 → 1.2e-08 (peak at step 2)"
    assert rates([0.1, 0.2, 0.1]) == "0.1 → 0.2 → 0.1 (peak at step 1)"
    assert rates([0.00012, 0.003, 1.2e-08], "zh") == "0.00012 → 0.003 → 1.2e-08（第 1 步达到峰值）"
    assert rates([0.1, 0.109, 0.05]) == "0.1 → 0.05"
    assert rates([0.1, 0.2, 0.3]) == "0.1 → 0.3"
    assert rates([0.1, None, 0.1]) == "0.1"
    assert rates([0.1, math.inf, 0.1]) == "0.1"
    groups = [(0.1, 0.01), (0.4, 0.04), (0.2, 0.02)]
    assert rates([0.1, 0.4, 0.2], lrs=groups) == "0.1 | 0.01 → 0.4 | 0.04 → 0.2 | 0.02 (peak at step 1)"
