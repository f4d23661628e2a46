"""Where an export goes, and what it leaves alone."""

from __future__ import annotations

import pytest
from export_runs import write_run

from gradmedic.cli.export import ExportCommand
from gradmedic.errors import InputError
from gradmedic.export import export_run, job
from gradmedic.export.target import new_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "exp1", steps=4)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_what_is_there_is_not_overwritten(folder, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "steps.csv").write_text("mine")
    with pytest.raises(InputError, match="--force"):
        export_run(folder, "csv", target)
    assert (target / "steps.csv").read_text() == "mine"
    assert names(tmp_path) == ["out"]


def test_force_replaces_the_same_names_and_no_others(folder, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "steps.csv").write_text("mine")
    (target / "thesis.tex").write_text("years of work")
    export_run(folder, "csv", target, force=True)
    assert (target / "steps.csv").read_text() != "mine"
    assert (target / "thesis.tex").read_text() == "years of work"
    assert names(tmp_path) == ["out"]


def test_nothing_is_left_of_an_export_that_fails(folder, tmp_path, monkeypatch):
    def broken(source, selection, work):
        (work / "steps.csv").write_text("half")
        yield "steps.csv"
        raise OSError("disk full")

    monkeypatch.setitem(job._WRITERS, "csv", broken)
    with pytest.raises(OSError, match="disk full"):
        export_run(folder, "csv", tmp_path / "out")
    assert names(tmp_path) == []


def test_a_file_is_no_target(folder, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is a file"):
        export_run(folder, "csv", tmp_path / "out")


def test_an_empty_folder_is_a_target(tmp_path):
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out", force=False) as work:
        (work / "sub").mkdir()
        (work / "sub" / "a").write_text("a")
    assert (tmp_path / "out" / "sub" / "a").read_text() == "a"


@pytest.mark.parametrize(("run", "message"), [("nowhere", "does not exist"), ("empty", "holds no run")])
def test_no_run(tmp_path, run, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=message):
        export_run(tmp_path / run, "csv", tmp_path / "out")
    assert names(tmp_path) == ["empty"]


def test_an_unknown_format(folder, tmp_path):
    with pytest.raises(InputError, match="parquet, csv, tensorboard"):
        export_run(folder, "xlsx", tmp_path / "out")


def command(words):
    import argparse

    parser = argparse.ArgumentParser()
    ExportCommand().prepare_parser(parser)
    return ExportCommand().run(parser.parse_args(words), parser)


def test_the_command_says_what_it_wrote(folder, tmp_path, capsys):
    assert command([str(folder), "--to", "csv", "-o", str(tmp_path / "out"), "--steps", ":2"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith(f"{tmp_path / 'out'}: steps.csv, tensors.csv")
    assert "histograms are left out" in out.err


def test_progress_reaches_the_whole(folder, tmp_path):
    seen = []
    export_run(folder, "parquet", tmp_path / "out", progress=lambda done, whole: seen.append((done, whole)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
