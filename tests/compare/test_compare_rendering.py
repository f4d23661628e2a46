"""A comparison reads well in a terminal, in Markdown and on a page, whatever things are called."""

from __future__ import annotations

import argparse
import html.parser
import json
import re

import pytest
from compared_runs import write_run
from rich.cells import cell_len

from gradmedic.cli.compare import CompareCommand
from gradmedic.compare import compare_runs
from gradmedic.compare.comparison import LayerDifference
from gradmedic.compare.rendering import render_markdown, render_section, render_text
from gradmedic.compare.sheet import _layer_row, ratio_text
from gradmedic.compare.words import WORDS
from gradmedic.errors import InputError

HOSTILE = "</section><script>alert(1)</script>|`\n\x1b[31m" + "x" * 300


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    names = (HOSTILE, "b.weight")
    a = write_run(root / "A <b>", names=names, meta={"torch": HOSTILE, "command": ["python", HOSTILE]})
    b = write_run(root / "B", steps=40, names=names, scale={HOSTILE: 8.0}, lr=0.2)
    return a, b


@pytest.fixture(scope="module")
def comparison(folders):
    return compare_runs(*folders)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_text_is_at_most_as_wide_as_the_terminal(comparison, lang):
    text = render_text(comparison, lang=lang, width=80)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert all(line.isprintable() for line in text.splitlines())


def test_text_says_what_matters(comparison):
    text = " ".join(render_text(comparison).split())
    assert "A: A <b> B: B" in text
    assert "Different from the first common step on (step 0) in lr, grad_norm" in text
    assert "Loss never differs by more than 5% for 10 steps in a row." in text
    assert re.search(r"b\.weight|x{10}", text)
    assert "steps recorded 60 40" in text
    assert "a step, median 100 ms 100 ms" in text


def test_markdown_tables_have_as_many_cells_in_each_row(comparison):
    tables = re.findall(r"(?:^\|.*\n)+", render_markdown(comparison), flags=re.MULTILINE)
    assert len(tables) >= 3
    for table in tables:
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nothing_breaks_out_of_the_section(comparison, lang):
    reader = Reader()
    reader.feed(render_section(comparison, lang=lang))
    assert reader.open == []
    assert "script" not in reader.tags
    assert reader.tags.count("section") == 1


def test_identical_runs_say_so(folders, tmp_path):
    a = folders[0]
    assert "Identical in every recorded number up to step 59." in render_text(compare_runs(a, a))
    assert "到第 59 步为止，所有记录的数值完全相同。" in render_text(compare_runs(a, a, lang="zh"), lang="zh")


def test_both_languages_have_the_same_words():
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, english in WORDS["en"].items():
        assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", WORDS["zh"][key])), key


def test_ratios():
    assert ratio_text(2.0) == "4"
    assert ratio_text(float("inf")) == "inf"
    assert ratio_text(float("-inf")) == "0"
    assert ratio_text(-1022.0) == "2^-1022"
    assert ratio_text(float("nan")) == "-"


def test_a_norm_that_was_not_recorded_is_not_called_nan():
    layer = LayerDifference("x", float("nan"), float("nan"), float("nan"), 0, (1.0, 0.0))
    assert _layer_row(layer) == ("x", "NaN", "-", "-", "100%, 0%")


def run(words):
    parser = argparse.ArgumentParser()
    CompareCommand().prepare_parser(parser)
    return CompareCommand().run(parser.parse_args(words), parser)


def test_the_command(folders, tmp_path, capsys):
    a, b = map(str, folders)
    assert run([a, b, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["courses"][0]["steps"] == [60, 40, 40]
    assert run([a, b, "-o", str(tmp_path / "c.md")]) == 0
    assert (tmp_path / "c.md").read_text().startswith("# A \\<b\\> and B")
    assert run([a, b]) == 0
    assert "Set differently" in capsys.readouterr().out
    with pytest.raises(InputError, match="name a file"):
        run([a, b, "--format", "html"])
    with pytest.raises(InputError, match="cannot write"):
        run([a, b, "-o", str(tmp_path / "no" / "c.md")])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c.md"]


def test_the_page_holds_both_runs_and_the_comparison(folders, tmp_path):
    a, b = map(str, folders)
    assert run([a, b, "-o", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert page.count('class="run-data"') == 2
    assert page.count('<section class="comparison"') == 1
    assert page.index('<section class="comparison"') < page.index('<div class="page">')
    assert "alert(1)</script>" not in page
