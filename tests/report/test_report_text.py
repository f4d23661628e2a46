"""The check-up on one screen, findings in three formats, and the pages of the codes."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnosis"))

from diagnosis_frames import FakeRun, fact, facts_event, frames

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.rules import RULES
from gradmedic.errors import InputError
from gradmedic.facts import Facts
from gradmedic.report import next_commands
from gradmedic.report.next_commands import page_can_be_made, quoted
from gradmedic.report.paragraph import wrap
from gradmedic.report.text import explain, render_checkup, render_findings


@pytest.fixture(autouse=True)
def _plotly_is_there(monkeypatch):
    monkeypatch.setattr(next_commands, "page_can_be_made", lambda: True)


def diverging() -> FakeRun:
    losses = [2.0 - 0.01 * i for i in range(60)] + [10.0 ** (i + 1) for i in range(8)] + [math.nan] * 5
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)] + [10.0 ** (i + 1) for i in range(8)] + [math.nan] * 5
    facts = Facts(parameters={f"layers.{i}.weight": fact(f"layers.{i}.weight", (512, 512)) for i in range(9)})
    made = frames(losses, norms, clipped=[i % 2 == 0 for i in range(73)], step_seconds=0.1, overhead_seconds=0.001)
    return FakeRun(made, [facts_event(facts)])


def lines(run, findings, **options):
    return render_checkup(run, findings, **options).splitlines()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_fits_the_screen(lang, width):
    run = diverging()
    shown = lines(run, diagnose(run), lang=lang, width=width)
    assert all(cell_len(line) <= width for line in shown)
    if width >= 80:
        assert len(shown) <= 24


def test_says_what_matters():
    run = diverging()
    text = render_checkup(run, diagnose(run))
    for part in (
        "1 finding in 73 steps",
        "2 → NaN",
        "GM302",
        "step 6",
        "also: GM201 NaN or infinity, step 68: follows from it",
        "gm.clip.norm(",
    ):
        assert part in text
    assert "2.36M parameters" in text
    assert "37 steps (50.7%)" in text
    assert "1% of the step time" in text
    assert text.rstrip().endswith("gradmedic explain GM302")


def test_healthy_run():
    run = FakeRun(frames([2.0, 1.5, 1.0]))
    text = render_checkup(run, diagnose(run))
    assert "healthy" in text
    assert "explain" not in text


@pytest.mark.parametrize(("lang", "words"), [("en", "nothing was trained"), ("zh", "没有训练任何模型")])
def test_run_without_steps(lang, words):
    assert words in render_checkup(FakeRun(), [], lang=lang)


def test_prints_to_a_console_without_colour():
    stream = io.StringIO()
    run = diverging()
    assert render_checkup(run, diagnose(run), console=Console(file=stream, width=80)) is None
    assert "GM302" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_markup_in_names_is_left_alone():
    run = FakeRun(frames([2.0] * 2), meta={"limits": 0.5})
    found = diagnose(run, limits=0.5)
    assert "[gm.clip.norm(0.5)]" in render_checkup(run, found)


def test_many_findings_stay_on_one_screen():
    run = diverging()
    found = diagnose(run) * 8
    text = render_checkup(run, found)
    assert "and 7 more: GM302" in text
    assert len(text.splitlines()) <= 24
    assert "and 5 more: GM302" in render_checkup(run, found, width=300)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_many_consequences_stay_on_one_screen_and_are_counted(lang):
    run = diverging()
    found = [replace(finding, folded=finding.folded * 20) for finding in diagnose(run)]
    text = render_checkup(run, found, lang=lang)
    assert len(text.splitlines()) <= 24
    assert {"en": "17 more that follow from it: GM201", "zh": "17 项由此引起：GM201"}[lang] in text


def test_ends_with_what_to_type_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, typed in (("exp 1", "'exp 1'"), ("-x", "./-x"), ("a\x1b[31m\nb", "$'a\\x1b[31m\\nb'")):
        run = diverging()
        run.path = tmp_path / name
        shown = lines(run, diagnose(run))
        assert shown[-2:] == ["next: gradmedic explain GM302", f"      gradmedic report {typed}"]
        healthy = FakeRun(frames([2.0, 1.5, 1.0]))
        healthy.path = tmp_path / name
        assert lines(healthy, [])[-1] == f"next: gradmedic report {typed}"


INSTALL = "pip install 'gradmedic[report]'"


@pytest.mark.parametrize(("lang", "says"), [("en", f"   (first: {INSTALL})"), ("zh", f"   （请先执行：{INSTALL}）")])
def test_says_what_the_page_needs_first_where_it_is_missing(tmp_path, monkeypatch, lang, says):
    monkeypatch.chdir(tmp_path)
    run = FakeRun(frames([2.0, 1.5, 1.0]))
    run.path = tmp_path / "run"
    found = importlib.util.find_spec
    monkeypatch.setattr(next_commands, "page_can_be_made", page_can_be_made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else found(name))
    assert lines(run, [], lang=lang)[-1].endswith(f"gradmedic report run{says}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("json") if name == "plotly" else found(name))
    assert lines(run, [], lang=lang)[-1].endswith("gradmedic report run")


@pytest.mark.parametrize("text", ["it's", "$(id)", "a\\b\x1b[2J", "名\n字 \u202e", "`x`", "\t'\\n"])
def test_a_folder_is_quoted_as_the_shell_reads_it(text):
    shell = subprocess.run(["bash", "-c", f"printf %s {quoted(text)}"], capture_output=True, check=True)
    assert shell.stdout.decode() == text
    assert quoted(text).isprintable()


def test_a_long_folder_is_not_broken():
    run = diverging()
    run.path = Path("/" + "y" * 200)
    assert lines(run, [], width=40)[-1] == f"next: gradmedic report /{'y' * 200}"


def test_names_do_not_reach_the_terminal_as_commands():
    evil = "bad\x1b[31m\n\u202e<script>名" + "n" * 300
    facts = Facts(parameters={f"{evil}.weight": fact(f"{evil}.weight", received=False, reached=False)})
    run = FakeRun(frames([2.0, 1.5, 1.0], optimizer=evil), [facts_event(facts)])
    found = diagnose(FakeRun(frames([2.0] * 2), meta={"limits": 0.5}), limits=0.5)
    found = [in_language(replace(found[0], where=(evil,), params={**found[0].params, "where": (evil,)}), "en")]
    text = render_checkup(run, found)
    assert all(line.isprintable() for line in text.splitlines())
    assert "bad\\x1b[31m\\n" in text
    assert "n" * 120 not in text.replace("\n", "")


def test_a_norm_that_no_median_shows_is_told_with_its_step():
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)]
    norms[13] = 3e16
    run = FakeRun(frames([2.0 - 0.01 * i for i in range(60)], norms))
    assert "largest 3e+16 at step 13" in " ".join(render_checkup(run, []).split())
    assert "第13步的3e+16" in "".join(render_checkup(run, [], lang="zh").split())
    data = json.loads(render_findings([], "json", run))
    assert data["gradients"][0]["largest_norm"] == {"value": 3e16, "step": 13}
    norms[13] = 30.0
    assert "largest" not in render_checkup(FakeRun(frames([2.0] * 60, norms)), [])
    assert [f.code for f in diagnose(run)] == ["GM404"]


def test_json_is_what_the_contract_says():
    run = diverging()
    found = diagnose(run)
    data = json.loads(render_findings(found, "json", run), parse_constant=lambda name: pytest.fail(name))
    assert list(data) == [
        *("run", "steps", "ended", "findings", "not_judged", "gradients"),
        *("ranks", "noise_scale", "problems"),
    ]
    assert data["steps"] == 73
    assert data["findings"] == [f.to_json() for f in found]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_markdown_and_text(lang):
    run = diverging()
    found = diagnose(run)
    markdown = render_findings(found, "markdown", run, lang)
    assert "## GM302" in markdown
    assert "| 6 |" in markdown  # the threshold of the robust z
    assert "`gm.clip.norm(" in markdown
    assert render_findings(found, "text", run, lang).startswith("GM302 exploding-gradient [error")
    assert render_findings([], "text") == ""
    with pytest.raises(InputError, match="format"):
        render_findings(found, "yaml")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_explain(lang):
    assert explain("GM301", lang).startswith("# GM301 vanishing-gradient")
    assert explain("gm301", lang) == explain("vanishing-gradient", lang) == explain("GM301", lang)
    table = explain(None, lang)
    assert all(rule.code in table and rule.name in table for rule in RULES)


def test_explain_names_the_nearest():
    with pytest.raises(InputError, match=r"^there is no rule 'foo'; `gradmedic explain` lists all$"):
        explain("foo")
    with pytest.raises(InputError, match="GM301"):
        explain("GM3011")
    with pytest.raises(InputError, match="vanishing-gradient"):
        explain("vanishing")


@pytest.mark.parametrize("width", [12, 30, 80])
def test_chinese_breaks_anywhere_but_before_closing_signs(width):
    text = (
        "直到 a.weight 为止的 2 个张量参与了前向计算，却没有梯度；而从 b 开始都有梯度（见下）：计算图就断在两者之间。"
        * 2
    )
    shown = list(wrap(text, width))
    assert "".join(shown).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in shown)
    assert not any(line[0] in "，。；：、）" for line in shown)
    assert all(cell_len(line) > width - 14 for line in shown[:-1])  # no line ends long before it must


def test_words_are_kept_whole():
    assert list(wrap("Lower the learning rate: try 3.", 12)) == ["Lower the", "learning", "rate: try 3."]


@pytest.mark.parametrize(("lang", "behind"), [("en", ["1 element", "2 elements"]), ("zh", ["1 个元素", "2 个元素"])])
def test_one_of_a_unit_is_singular(lang, behind):
    evidence = tuple(Evidence("NaN elements", n, 0, "elements") for n in (1, 2))
    found = Finding("GM201", "nonfinite", "critical", 0.9, 3, evidence=evidence, params={"message": "-"})
    text = render_findings([found], "markdown", lang=lang)
    assert all(f"| {each} | 0 |" in text for each in behind)
