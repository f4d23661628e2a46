"""The screen says what was recorded, within its bounds, whatever the terminal and the names."""

from __future__ import annotations

import argparse
import io
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from top_runs import finding, frame, recorder_of, write_run

from gradmedic.cli.top import TopCommand
from gradmedic.diagnosis import Finding
from gradmedic.errors import InputError
from gradmedic.top.app import show_once
from gradmedic.top.follow import Follower, Snapshot
from gradmedic.top.glyphs import ASCII, UNICODE
from gradmedic.top.judging import Judge
from gradmedic.top.screen import page_of, screen_lines
from gradmedic.top.view import View
from gradmedic.top.words import WORDS


def watched(folder, lang="en"):
    return Follower(folder, Judge(lang).findings).poll()


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "exp\x1b[2J<b>"
    recorder = recorder_of(folder)
    for optimizer in ("G", "D", "third\n"):
        for step in range(40):
            spoilt = {"loss": math.nan, "grad_norm": math.inf} if step > 30 else {}
            values = {"optimizer": optimizer, "clipped": step % 4 == 0, "clip_threshold": 1.5, "skipped": step == 7}
            recorder.put(frame(step, **values, **spoilt), keep=True)
    for at in range(12):
        recorder.event(finding(f"GM{201 + at}" if at else "GM201", step=at, severity="warning" if at else "critical"))
    recorder.close("RuntimeError: \x1b[31mout of memory")
    return folder


@settings(deadline=None, max_examples=40)
@given(
    st.integers(20, 200),
    st.integers(5, 60),
    st.sampled_from([UNICODE, ASCII]),
    st.sampled_from(["en", "zh"]),
    st.sampled_from([View(), View(sort="norm", offset=2, paused=True), View(pattern="zz"), View(typing="f" * 80)]),
)
def test_always_within_the_terminal(sick, width, height, glyphs, lang, view):
    snapshot = SEEN.setdefault((str(sick), lang), None) or watched(sick, lang)
    SEEN[str(sick), lang] = snapshot
    lines = screen_lines(snapshot, view, width, height, glyphs, lang)
    assert len(lines) == height
    for line in lines:
        assert line.cell_len <= width
        assert line.plain.isprintable()
        assert glyphs is not ASCII or line.plain.isascii()
    assert page_of(snapshot, view, width, height, glyphs, lang) >= 1


SEEN = {}


def shown(folder, width=80, height=24, view=None, lang="en", glyphs=UNICODE):
    lines = screen_lines(watched(folder, lang), view or View(), width, height, glyphs, lang)
    return [line.plain.rstrip() for line in lines]


def test_values_are_those_recorded(tmp_path):
    lines = shown(write_run(tmp_path / "exp1", clipped=True, clip_threshold=1.5, skipped=False))
    assert lines[0] == "exp1  ended  step 19  5 steps/s  200 ms, 5.0% ours"
    assert lines[1].startswith("loss      █")
    assert lines[1].endswith("4 → 0.2  min 0.2 max 4")
    assert lines[2].endswith("2 → 3.9  min 2 max 3.9")
    assert lines[3] == "lr 0.001   clipped 100% (last 20), 100% of all at 1.5   skipped 0"
    assert lines[4] == "no findings"
    assert lines[5].startswith("tensors 1-5 of 5")
    row = next(line for line in lines if line.startswith("blocks.0.fc.weight"))
    assert row.split()[1:5] == ["0.119", "0.002", "0%", "ok"]
    assert lines[-1].startswith("q quit   s sort: trouble")


def test_tensors_are_scrolled_sorted_and_filtered(tmp_path):
    names = tuple(f"blocks.{at}.weight" for at in range(50))
    folder = write_run(tmp_path / "exp1", names=names)
    assert shown(folder, view=View(sort="order"))[5].startswith("tensors 1-17 of 55")
    lines = shown(folder, view=View(sort="order", pattern="blocks.*weight", offset=20))
    assert lines[5].startswith("tensors 21-37 of 52")
    assert lines[-1].startswith("q quit   s sort: order   f filter: blocks.*weight")


def test_all_at_80_by_24_with_three_optimizers_and_many_findings(sick):
    lines = shown(sick)
    assert any(line.startswith("warning GM202") and "that follow" in line for line in lines)
    assert any("more: GM" in line for line in lines)
    assert [line.split("  ")[0] for line in lines if "not finite 9" in line] == ["G", "D", "third\\n"]
    assert sum(line.startswith(("tok.", "blocks.", "…")) for line in lines) >= 4
    assert "RuntimeError: \\x1b[31m" in lines[0]


def test_strips_share_one_scale_and_small_noise_stays_small(tmp_path):
    folder = write_run(tmp_path / "far", steps=1)
    rows = [line for line in shown(folder, width=120) if line.startswith(("tok", "blocks.0.fc.w", "blocks.1"))]
    assert [row.split()[-1] for row in rows] == ["█", "▇", "▃"]  # four decades
    near = write_run(tmp_path / "near", steps=1, names=("a", "b"))
    assert "0.0316 ▁–█ 3.16" in shown(near)[5]  # a factor of ten is shown on two decades


def test_a_run_that_is_not_there_yet(tmp_path):
    snapshot = Snapshot("exp1", tmp_path / "exp1")
    lines = [line.plain for line in screen_lines(snapshot, View(), 200, 24, UNICODE, "en")]
    assert f"waiting for {tmp_path / 'exp1'}" in lines
    assert len(lines) == 24


def test_runs_without_steps_or_tables(tmp_path):
    recorder = recorder_of(tmp_path / "none")
    recorder.close()
    assert "no optimizer step yet" in shown(tmp_path / "none")
    recorder = recorder_of(tmp_path / "scalars")
    recorder.put(frame(0), keep=False)
    recorder.close()
    lines = shown(tmp_path / "scalars")
    assert any(line.startswith("tensors 1-5 of 5") for line in lines)
    assert next(line for line in lines if line.startswith("tok.weight")).split() == ["tok.weight", "-", "-", "-", "-"]


@pytest.mark.parametrize(("lang", "told"), [("en", "gradients were not treated after that"), ("zh", "梯度未经处理")])
def test_a_part_that_was_switched_off_is_told(tmp_path, lang, told):
    recorder = recorder_of(tmp_path / "off")
    recorder.put(frame(0), keep=False)
    recorder.event({"kind": "error", "part": "transform", "step": 1, "message": "Mine in x.py, line 3, raised"})
    recorder.close()
    [line] = [line for line in shown(tmp_path / "off", width=160, lang=lang) if told in line]
    assert "Mine in x.py, line 3, raised" in line
    assert "1" in line.split("Mine")[0]


def test_both_languages_have_the_same_words():
    assert WORDS["en"].keys() == WORDS["zh"].keys()


def once(folder, **words):
    file = io.StringIO()
    show_once(folder, Console(file=file, width=80), **words)
    return file.getvalue()


def test_once_is_plain_text(sick):
    text = once(sick)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "q quit" not in text
    assert "GM" in text, text
    assert once(sick, glyphs=ASCII).isascii()
    assert "损失" in once(sick, lang="zh")
    assert once(sick, lang="zh", glyphs=ASCII).isascii()


def test_once_names_what_is_missing(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        once(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no run"):
        once(tmp_path)


def test_the_command_prints_once_where_there_is_no_terminal(tmp_path, capsys):
    write_run(tmp_path / "exp1")
    parser = argparse.ArgumentParser()
    TopCommand().prepare_parser(parser)
    assert TopCommand().run(parser.parse_args([str(tmp_path / "exp1"), "--lang", "en"]), parser) == 0
    assert "exp1  ended" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parser.parse_args(["x", "--interval", "0"])


@pytest.mark.parametrize(("lang", "told"), [("en", "press n to switch to it"), ("zh", "按 n 切换过去")])
def test_what_is_beside_the_run_is_told_and_fits(lang, told):
    hostile = "runs\x1b[31m\n" + "y" * 300
    snapshot = Snapshot("run", Path("run"), "ended", newer=hostile, instead_of=hostile, parted={0: 12, 1: 20, 2: 15})
    lines = screen_lines(snapshot, View(), 80, 24, UNICODE, lang)
    text = "\n".join(line.plain for line in lines)
    assert len(lines) == 24
    assert all(line.cell_len <= 80 for line in lines)
    assert told in text
    assert {"en": "switched here from", "zh": "已从更早的运行"}[lang] in text
    assert {"en": "rank 0: 12, rank 1: 20", "zh": "rank 0：12, rank 1：20"}[lang] in text
    assert "\x1b" not in text


def test_a_long_reason_is_cut_only_where_there_is_no_room_and_the_rank_of_a_finding_is_named():
    reason = "exception: TrainingHalted: grad_norm above 100"
    found = Finding("GM201", "nan", "critical", 0.9, 3, params={"rank": 3})
    snapshot = Snapshot(path=Path("runs/a"), name="a", state="ended", reason=reason, findings=[found])
    wide = [line.plain for line in screen_lines(snapshot, View(), 120, 24, UNICODE, "en")]
    assert reason in wide[0]
    assert any("rank 3" in line for line in wide)
    narrow = screen_lines(snapshot, View(), 40, 24, UNICODE, "en")
    assert reason not in narrow[0].plain
