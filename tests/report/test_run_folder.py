"""All commands take a folder of runs for the newest run in it, and say which that is."""

import os

import pytest

from gradmedic.cli import main
from gradmedic.cli.run_folder import run_folder
from gradmedic.frame import Frame
from gradmedic.record import Recorder


@pytest.fixture
def parent(tmp_path):
    """A folder of two runs; "a" was written to last."""
    for name, time in (("a", 2_000_000_000), ("b", 1_000_000_000)):
        recorder = Recorder(tmp_path / name, meta={})
        for step in range(3):
            recorder.put(Frame(step, "adam", loss=1.0 / (step + 1), grad_norm=1.0), keep=False)
        recorder.close()
        for file in (tmp_path / name).iterdir():
            os.utime(file, (time, time))
    return tmp_path


def test_the_newest_is_taken_and_named(parent, capsys):
    assert run_folder(str(parent)) == str(parent / "a")
    assert capsys.readouterr().err == f"gradmedic: {parent} holds 2 runs; this is the newest one, {parent / 'a'}\n"
    assert run_folder(str(parent), "zh") == str(parent / "a")
    assert "最新" in capsys.readouterr().err


def test_a_folder_that_only_looks_like_a_run_hides_no_run(parent, capsys):
    (parent / "odd").mkdir()
    os.mkfifo(parent / "odd" / "run.json")
    os.utime(parent / "odd" / "run.json", (3_000_000_000, 3_000_000_000))
    assert run_folder(str(parent)) == str(parent / "a")
    assert "holds 2 runs" in capsys.readouterr().err


def test_what_is_a_run_or_holds_none_stays(parent, capsys):
    for path in (parent / "b", parent / "missing", parent / "b" / "run.json"):
        assert run_folder(str(path)) == str(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["report", "diagnose", "clip", "export", "compare"])
def test_every_command_takes_a_folder_of_runs(parent, capsys, monkeypatch, command):
    monkeypatch.chdir(parent)
    more = {"export": ["--to", "csv"], "compare": [str(parent / "b")], "report": ["-o", "page.html"]}.get(command, [])
    assert main([command, str(parent), *more]) == 0
    assert str(parent / "a") in capsys.readouterr().err
