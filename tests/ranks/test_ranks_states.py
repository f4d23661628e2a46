"""What is said of ranks that stopped, that left no record or a torn one, or that made other numbers of steps."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm
from gradmedic.diagnosis.noise_scale import noise_scale_of
from gradmedic.diagnosis.ranks import RankState, rank_states, stopped_first
from gradmedic.process_rank import goes_on, is_restart, job_of
from gradmedic.report.rank_lines import rank_lines
from gradmedic.report.text import render_checkup, render_findings


def train(folder: str, end: str) -> None:
    """Make 70 steps; the record is written at 64, so that a rank that is killed after 66 leaves most of them."""
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    model = model if end == "unequal" else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=folder, modules=None) as monitor:
        for step in range(70 if end != "unequal" else 4 + rank):
            if step == 66 and rank == 1 and end != "unequal":
                monitor.flush()
                if end == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("bad sample")
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def attempt(folder: str, end: str) -> str:
    try:
        train(folder, end)
    except Exception as error:
        distributed.destroy_process_group()  # what the launcher does with a rank that failed: it ends
        return type(error).__name__
    return ""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("states")
    for end in ("killed", "raised", "unequal"):
        run_on_ranks(attempt, str(made / end), end, missing={1} if end == "killed" else ())
    return made


def said(run: gm.record.Run, lang: str = "en") -> str:
    return " ".join((render_checkup(run, gm.diagnose(run), lang=lang, width=200) or "").split())


def test_a_rank_that_was_killed_is_named_as_the_first_that_stopped(folders):
    run = gm.open_run(folders / "killed")
    first = stopped_first(rank_states(run))
    assert first is not None
    assert (first.rank, first.last_step, first.ended) == (1, 65, None)
    assert "rank 1 stopped first: its record ends at step 65 and was not closed" in said(run)
    assert "rank 1 最先停止：其记录到第 65 步为止，且未关闭" in said(run, "zh")
    ranks = json.loads(render_findings(gm.diagnose(run), "json", run))["ranks"]
    assert [(entry["rank"], entry["last_step"], entry["ended"]) for entry in ranks] == [
        (0, 65, "exception: RuntimeError"),
        (1, 65, None),
    ]


def test_a_rank_that_raised_first_is_named(folders):
    run = gm.open_run(folders / "raised")
    assert "rank 1 ended first, after step 65: exception: ValueError" in said(run)


def test_other_numbers_of_steps_are_said(folders):
    run = gm.open_run(folders / "unequal")
    assert "steps made: 4 by rank 0, 5 by rank 1" in said(run)
    assert [entry["steps"] for entry in json.loads(render_findings([], "json", run))["ranks"]] == [4, 5]


@pytest.mark.parametrize("damage", ["missing", "torn", "no run file"])
def test_a_record_of_a_rank_that_is_not_whole_is_said_and_costs_only_itself(folders, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(folders / "unequal", folder)
    for file in folder.iterdir():
        if damage == "missing" and "-1-" in file.name:
            file.unlink()
        if damage == "torn" and file.name.startswith("steps-1-"):
            file.write_bytes(file.read_bytes()[:-600])
        if damage == "no run file" and file.name.startswith("run-1-"):
            file.unlink()
    run = gm.open_run(folder)
    text = said(run)
    assert len(run.series("loss", rank=0)) == 4
    assert ("rank 1 left no record" in text) == (damage == "missing")
    assert ("not read steps-1-" in text) == (damage == "torn")
    problems = json.loads(render_findings([], "json", run))["problems"]
    assert problems == run.problems
    assert len(problems) == (damage == "torn")


def test_a_run_of_one_process_says_nothing_of_ranks(tmp_path):
    model = nn.Linear(2, 1)
    with gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), record=tmp_path / "run"):
        model(torch.ones(1, 2)).sum().backward()
    run = gm.open_run(tmp_path / "run")
    assert rank_states(run) == []
    assert list(rank_lines([], noise_scale_of(run), "en")) == []
    assert json.loads(render_findings([], "json", run))["noise_scale"] is None


def test_processes_that_train_by_themselves_have_no_noise_scale(tmp_path, monkeypatch):
    """As under torchrun, with a script that does not use torch.distributed."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gm.watch(model, optimizer, record=tmp_path / "run"):
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    run = gm.open_run(tmp_path / "run")
    assert [state.steps for state in rank_states(run)] == [3, 3]
    assert run.noise_scale().reason == "not_joined"
    assert "each process trained by itself" in str(run.noise_scale())
    assert "noise scale" not in said(run)
    assert "噪声尺度" not in said(run, "zh")
    assert json.loads(render_findings([], "json", run))["noise_scale"]["reason"] == "not_joined"


STATES = [RankState(rank, 10 + rank % 3, 9 + rank % 3, 100.0, "finished", 101.0) for rank in range(20)]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_many_ranks_are_counted_and_hostile_reasons_stay_on_one_line(lang):
    (_, text), *_ = rank_lines(STATES, None, lang)
    assert "10" in text
    assert "12" in text
    assert "rank 13" not in text
    bad = [RankState(0, 3, 2, 1.0, "finished", 2.0), RankState(1, 3, 2, 1.0, "exception: \x1b[31m\n", 2.0)]
    (_, text), *_ = rank_lines(bad, None, lang)
    assert text.isprintable()


def test_a_process_that_its_launcher_started_anew_goes_on_in_the_folder(tmp_path):
    alone, job = {}, {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    assert job_of(alone) is None
    mine = {"job": job_of(job), "pid": os.getpid() + 1}
    (tmp_path / "run.json").write_text(json.dumps(mine))
    assert goes_on(tmp_path, job)
    assert not goes_on(tmp_path, alone)
    assert goes_on(tmp_path / "none", {**job, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert not is_restart({"TORCHELASTIC_RESTART_COUNT": "x"})
    for other in ({**mine, "job": "another"}, {**mine, "pid": os.getpid()}, {}, [], "{"):
        (tmp_path / "run.json").write_text(other if isinstance(other, str) else json.dumps(other))
        assert not goes_on(tmp_path, job)
