"""A run that something cut short is not called healthy: headline, text, markdown and JSON say what ended it."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnosis"))

from diagnosis_frames import FakeRun, frames

import gradmedic as gm
from gradmedic.diagnosis.ranks import RankState
from gradmedic.report import run_ending
from gradmedic.report.run_ending import RunEnding, ending_of, ending_sentence
from gradmedic.report.text import render_checkup, render_findings

#: The reason in the record, and what is said of it in both languages.
ENDS = {
    "exception: ZeroDivisionError": (
        "the run ended by ZeroDivisionError after step 2",
        "运行在第 2 步之后因 ZeroDivisionError 结束",
    ),
    "interrupted": ("the run was interrupted after step 2", "运行在第 2 步之后被用户中断"),
    "exit code 3": ("the run ended with exit code 3 after step 2", "运行在第 2 步之后以退出码 3 结束"),
    "stopped: bad batch": ("the run was stopped after step 2 (bad batch)", "运行在第 2 步之后被停止（bad batch）"),
}


def ended(reason: str) -> FakeRun:
    return FakeRun(frames([2.0, 1.5, 1.0]), [{"kind": "end", "time": 1.0, "reason": reason}])


@pytest.mark.parametrize("reason", ENDS)
def test_every_format_says_what_ended_the_run(reason):
    english, chinese = ENDS[reason]
    run = ended(reason)
    assert render_checkup(run, [], width=120).startswith(f"gradmedic: nothing found until {english}\n")
    assert render_checkup(run, [], lang="zh", width=120).startswith(f"gradmedic: {chinese}，在此之前未发现问题\n")
    sentence = english[0].upper() + english[1:] + "."
    assert render_findings([], "text", run) == sentence
    assert render_findings([], "markdown", run).splitlines()[2:] == [sentence]
    assert json.loads(render_findings([], "json", run))["ended"] == {
        "reason": reason,
        "early": True,
        "rank": None,
        "last_step": 2,
    }


def test_findings_are_counted_beside_it():
    run = ended("exception: ValueError")
    text = render_checkup(run, gm.diagnose(FakeRun(frames([2.0], [9.0])), limits=1.0), width=120)
    assert text.startswith("gradmedic: 1 finding in 3 steps; the run ended by ValueError after step 2\n")


@pytest.mark.parametrize("reason", ["finished", "interpreter exit", "the watched model is gone", "left by the trainer"])
def test_an_end_in_order_changes_nothing(reason):
    run = ended(reason)
    assert render_checkup(run, []).startswith("gradmedic: healthy: nothing found in 3 steps\n")
    assert render_findings([], "text", run) == ""
    assert json.loads(render_findings([], "json", run))["ended"] == {
        "reason": reason,
        "early": False,
        "rank": None,
        "last_step": 2,
    }


def test_a_run_that_goes_on_has_not_ended():
    run = FakeRun(frames([2.0, 1.5]))
    assert render_checkup(run, []).startswith("gradmedic: healthy: nothing found in 2 steps\n")
    assert json.loads(render_findings([], "json", run))["ended"] is None


def rank(number: int, steps: int, ended: str | None) -> RankState:
    return RankState(
        number, steps, steps - 1 if steps else None, 100.0 + steps, ended, None if ended is None else 200.0
    )


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([rank(0, 5, "finished"), rank(1, 5, "interpreter exit")], RunEnding("finished", None, 4)),
        ([rank(0, 5, "exception: RuntimeError"), rank(1, 4, None)], RunEnding(None, 1, 3)),
        ([rank(0, 5, "finished"), rank(1, 4, None)], RunEnding(None, 1, 3)),
        ([rank(0, 5, "interpreter exit"), rank(1, 0, "exit code 1")], RunEnding("exit code 1", 1, None)),
        ([rank(0, 5, None), rank(1, 5, None)], None),
        ([rank(0, 5, "finished"), rank(1, 0, None)], RunEnding("finished", None, 4)),
    ],
)
def test_the_rank_that_ended_a_job_is_named(states, found):
    assert ending_of(FakeRun(), states) == found


def test_a_dead_rank_in_words():
    assert ending_sentence(RunEnding(None, 1, 65), "en") == "Rank 1 broke off after step 65, its record not closed."
    assert ending_sentence(RunEnding(None, 1, 65), "zh") == "rank 1 在第 65 步之后中断，记录未关闭。"
    assert ending_sentence(RunEnding("exit code 1", 1), "en") == "Rank 1 ended with exit code 1 before its first step."


def test_a_hostile_reason_stays_on_one_line():
    run = ended("exception: E\x1b[31m\n" + "n" * 300)
    first = render_checkup(run, [], width=400).splitlines()[0]
    assert first.isprintable()
    assert "n" * 200 not in first


def train(folder: Path | None) -> gm.record.Run:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(ZeroDivisionError), gm.watch(model, optimizer, record=folder) as monitor:
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        raise ZeroDivisionError
    return monitor.run if folder is None else gm.open_run(folder)


@pytest.mark.parametrize("kept", [True, False])
def test_a_training_that_raised(tmp_path, kept):
    run = train(tmp_path / "run" if kept else None)
    text = render_checkup(run, [], width=120)
    assert text.startswith("gradmedic: nothing found until the run ended by ZeroDivisionError after step 3\n")


def test_a_record_whose_process_is_gone_broke_off(tmp_path, monkeypatch):
    train(tmp_path / "run")
    (events,) = (tmp_path / "run").glob("events-*")
    lines = [line for line in events.read_text().splitlines(keepends=True) if '"kind":"end"' not in line]
    events.write_text("".join(lines))
    text = render_checkup(gm.open_run(tmp_path / "run"), [])
    assert text.startswith("gradmedic: healthy: nothing found in 4 steps\n")  # the writing process is this one
    monkeypatch.setattr(run_ending, "_is_gone", lambda run, process: True)
    text = render_checkup(gm.open_run(tmp_path / "run"), [], width=120)
    assert text.startswith("gradmedic: nothing found until the run broke off after step 3, its record not closed\n")
