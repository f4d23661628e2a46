"""A part that was switched off while a run was recorded is told wherever the run is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnosis"))

from diagnosis_frames import FakeRun, frames

import gradmedic as gm
from gradmedic.report.switched_off import in_words, troubles_of
from gradmedic.report.text import render_checkup, render_findings

OFF = "Mine in t.py, line 3, raised KeyError: 'x'; it is switched off, and gradients go untreated from here on"
EVENTS = [
    {"kind": "error", "part": "transform", "step": 19, "message": f"{OFF}; training goes on"},
    {"kind": "error", "part": "modules", "step": 4, "rank": 1, "message": "ValueError: y"},
    {"kind": "error", "part": "rule", "message": "rule GM301 z is switched off: KeyError: 'w'"},
    {"kind": "error", "part": "on_finding", "message": "f in t.py raised; it is called no more; training goes on"},
]
TOLD = {
    "en": (
        "the transform was switched off from step 19 on, gradients were not treated after that: Mine in t.py, line 3",
        "modules was switched off on rank 1 from step 4 on, nothing was watched by it after that: ValueError: y",
        "rule GM301 z is switched off: KeyError: 'w'; it judged nothing after that",
        "on_finding was called no more: f in t.py raised",
    ),
    "zh": (
        "变换从第 19 步起被关闭，此后梯度未经处理：Mine in t.py, line 3",
        "modules 在 rank 1 上从第 4 步起被关闭，此后不再监视：ValueError: y",
        "rule GM301 z is switched off: KeyError: 'w'；不再判断",
        "on_finding 不再被调用：f in t.py raised",
    ),
}


def healthy(events=()):
    return FakeRun(frames([1.0 - 0.01 * at for at in range(20)], [1.0] * 20), list(events))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_each_part_has_its_line_in_every_format(lang):
    run = healthy(EVENTS)
    problems = json.loads(render_findings([], "json", run, lang))["problems"]
    assert all(line in problem for line, problem in zip(TOLD[lang], problems, strict=True))
    shown = render_checkup(run, [], lang=lang, width=300)
    for text in (shown, render_findings([], "text", run, lang), render_findings([], "markdown", run, lang)):
        assert all(line in text for line in TOLD[lang])
    first = shown.splitlines()[0]
    assert ("not all treated and watched" if lang == "en" else "并非每一步都经过处理和监视") in first


def test_a_run_of_which_nothing_was_switched_off_is_healthy():
    late = {"kind": "error", "part": "transform", "off": False, "step": 3, "message": "Mine returned what is none"}
    for run in (healthy(), healthy([late])):
        assert render_checkup(run, []).startswith("gradmedic: healthy: nothing found in 20 steps")
    assert in_words(troubles_of([late])[0], "en") == "transform from step 3 on: Mine returned what is none"


def test_what_was_said_twice_is_told_once():
    assert len(troubles_of([*EVENTS, *EVENTS])) == len(EVENTS)


class Mine(gm.clip.BaseTransform):
    """Fails at its third step."""

    def update(self, summary, state):
        if summary.step == 2:
            raise KeyError("x")
        return gm.clip.Decision(), state


def test_a_transform_that_failed_is_told_with_its_step(capsys):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gm.watch(net, optimizer, transform=Mine()) as monitor:
        for _ in range(5):
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    [trouble] = troubles_of(monitor.run.events)
    assert (trouble.part, trouble.step, trouble.off) == ("transform", 2, True)
    assert "the transform was switched off from step 2 on" in render_checkup(monitor.run, [], width=300)
