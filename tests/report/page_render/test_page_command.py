"""`gradmedic report`."""

from __future__ import annotations

import argparse
import json
import re

import pytest

from gradmedic.cli import report
from gradmedic.cli.report import ReportCommand, make_report, output_file
from gradmedic.errors import InputError
from gradmedic.frame import Frame
from gradmedic.record import Recorder, open_run


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a run, named oddly"
    recorder = Recorder(folder, meta={})
    for step in range(5):
        recorder.put(Frame(step, "adam", loss=1.0 / (step + 1)), keep=True)
    recorder.close()
    return folder


def parse(*words):
    parser = argparse.ArgumentParser()
    ReportCommand().prepare_parser(parser)
    return parser.parse_args([str(word) for word in words]), parser


def test_it_writes_the_page_and_says_where(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert ReportCommand().run(*parse(run, "--lang", "zh")) == 0
    file = tmp_path / "a_run_named_oddly-report.html"
    said = capsys.readouterr().out
    assert re.fullmatch(r"a_run_named_oddly-report\.html  [\d.]+ MB  [\d.]+ s\n", said)
    page = file.read_text(encoding="utf-8")
    data = json.loads(re.search(r'class="run-data"[^>]*>(.*?)</script>', page, re.DOTALL).group(1))
    assert data["run"]["steps"] == 5
    assert 'data-lang="zh"' in page
    assert sorted(entry.name for entry in run.iterdir() if entry.suffix == ".html") == [], (
        "the run folder is the record"
    )


def test_several_runs_and_a_file_of_ones_own(run, tmp_path, capsys):
    file = tmp_path / "both.html"
    assert ReportCommand().run(*parse(run, run, "-o", file)) == 0
    assert file.read_text(encoding="utf-8").count('class="run-data"') == 2


def test_open_shows_it_in_the_browser(run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    ReportCommand().run(*parse(run, "-o", tmp_path / "x.html", "--open"))
    assert opened == [(tmp_path / "x.html").as_uri()]


def test_what_is_no_run_or_no_place_is_said(run, tmp_path):
    with pytest.raises(InputError):
        make_report([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="is a folder"):
        output_file(str(tmp_path), [str(run)])
    with pytest.raises(InputError, match="there is no"):
        output_file(str(tmp_path / "no" / "file.html"), [str(run)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("runs/exp1", "exp1-report.html"), ("..hidden", "hidden-report.html"), ("训练", "训练-report.html")],
)
def test_default_file_is_named_after_the_run(name, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_file(None, [name]).name == expected


@pytest.mark.parametrize("ended", [True, False])
def test_the_findings_of_a_long_run_are_those_that_it_recorded(tmp_path, monkeypatch, ended):
    """To judge 10,000 steps anew takes longer than the page; a run that was killed has not said its last word."""
    monkeypatch.setattr(report, "LONG_RUN", 5)
    folder = tmp_path / "run"
    recorder = Recorder(folder, meta={})
    for step in range(8):
        recorder.put(Frame(step, "adam", float(step), loss=1.0, lr=0.0), keep=True)
    told = {"code": "GM109", "name": "wrong-mode", "severity": "error", "step": 3, "params": {"steps": 4}}
    recorder.event({"kind": "finding", "step": 3, "time": 3.0, "finding": told})
    recorder.close()
    if not ended:
        for file in folder.glob("events-*.jsonl"):
            lines = file.read_text("utf-8").splitlines(keepends=True)
            file.write_text("".join(line for line in lines if '"end"' not in line), "utf-8")
    run = open_run(folder)
    found = report._findings_of(run)
    assert ([each.code for each in found] == ["GM109"]) if ended else (found is None)
