"""One folder for all ranks, and what happens when one of them does not watch, or dies."""

from __future__ import annotations

import os
from datetime import timedelta

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm
from gradmedic.stats import agreement


def model_of(scheme: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    return fully_shard(model) if scheme == "fsdp" else DistributedDataParallel(model)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        model(torch.ones(2, 4) * (1 + distributed.get_rank())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def record(folder: str, scheme: str) -> None:
    model = model_of(scheme)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=folder, strict=True):
        steps(model, optimizer, 5)


def record_each(folder: str) -> str:
    """Record both schemes, and then one of them once more into the same folder: return how that was refused."""
    for scheme in ("ddp", "fsdp"):
        record(f"{folder}/{scheme}", scheme)
    try:
        record(f"{folder}/ddp", "ddp")
    except gm.InputError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of both runs, and what each rank said of a third one."""
    made = tmp_path_factory.mktemp("records")
    return made, run_on_ranks(record_each, str(made))


@pytest.mark.parametrize("scheme", ["ddp", "fsdp"])
def test_each_rank_writes_files_of_its_own_and_readers_merge_them(recorded, scheme):
    run = gm.open_run(recorded[0] / scheme)
    assert run.problems == []
    assert sorted(set(run.steps["rank"].to_pylist())) == [0, 1]
    assert run.steps.num_rows == 10
    first, second = (run.series("grad_norm", rank=rank) for rank in (0, 1))
    assert len(run.series("grad_norm")) == 5
    np.testing.assert_array_equal(first, second)
    assert (run.series("loss", rank=0) != run.series("loss", rank=1)).all()  # each saw a batch of its own


def test_a_folder_that_holds_a_run_is_refused_on_every_rank(recorded):
    first, second = recorded[1]
    assert "already holds a run" in first
    assert "already holds a run" in second


def watch_on_rank_0(folder: str) -> list[str]:
    agreement.PATIENCE = timedelta(seconds=1)
    model = model_of("fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if distributed.get_rank() != 0:
        steps(model, optimizer, 3)
        return []
    with gm.watch(model, optimizer, record=folder, strict=True) as monitor:
        steps(model, optimizer, 3)
        shard = model[0].weight.to_local().numel()
        assert monitor.latest.tensors["0.weight"].numel == shard
    return [event["message"] for event in gm.open_run(folder).events if event.get("part") == "ranks"]


def test_watching_on_one_rank_only_hangs_nobody_and_is_said(tmp_path):
    said, _ = run_on_ranks(watch_on_rank_0, str(tmp_path / "run"))
    assert len(said) == 1
    assert "call gm.watch on every rank" in said[0]


def treat_on_rank_0() -> str:
    agreement.PATIENCE = timedelta(seconds=1)
    model = model_of("fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if distributed.get_rank() != 0:
        steps(model, optimizer, 1)
        return ""
    with gm.watch(model, optimizer, transform=gm.clip.norm(1.0)):
        try:
            steps(model, optimizer, 1)
        except gm.TransformError as error:
            return str(error)
    return "nothing was said"


def test_treating_on_one_rank_only_is_refused():
    said, _ = run_on_ranks(treat_on_rank_0)
    assert "on every rank" in said


def lose_a_rank(folder: str, scheme: str) -> str:
    model = model_of(scheme)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        with gm.watch(model, optimizer, record=folder):
            steps(model, optimizer, 3)
            if distributed.get_rank() == 1:
                os._exit(9)
            steps(model, optimizer, 3)
    except RuntimeError as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize("scheme", ["ddp", "fsdp"])
def test_a_rank_that_dies_ends_the_others_with_their_record_closed(tmp_path, scheme):
    folder = tmp_path / "run"
    said, _ = run_on_ranks(lose_a_rank, str(folder), scheme, missing={1})
    assert said != "nothing was said"
    run = gm.open_run(folder)
    assert len(run.series("grad_norm", rank=0)) == 3
    assert [event["reason"] for event in run.events if event["kind"] == "end"] == ["exception: RuntimeError"]


def part_ways(how: str, scheme: str) -> str:
    agreement.PATIENCE = timedelta(seconds=1)
    model = model_of(scheme)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = distributed.get_rank() == 1
    with gm.watch(model, optimizer) as monitor:
        steps(model, optimizer, 2)
        if how == "closed" and second:
            monitor.close()
        if how == "another watch" and not second:
            small = nn.Linear(2, 1)
            with gm.watch(small):
                small(torch.ones(1, 2)).sum().backward()
        if how == "paused" and second:
            with monitor.paused():
                steps(model, optimizer, 2)
        else:
            steps(model, optimizer, 2)
        if how == "fault" and second:
            monitor.isolation.failed("before_step", ValueError("ours"))
        steps(model, optimizer, 2)
    return "ended"


@pytest.mark.parametrize("how", ["closed", "paused", "fault", "another watch"])
def test_a_rank_that_stops_to_take_part_hangs_nobody(how):
    assert run_on_ranks(part_ways, how, "fsdp") == ["ended", "ended"]


def test_a_guard_on_the_loss_of_one_rank_only_is_refused():
    said, _ = run_on_ranks(refused_alone)
    assert "on every rank" in said


def refused_alone() -> str:
    agreement.PATIENCE = timedelta(seconds=1)
    model = model_of("ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if distributed.get_rank() == 1:
        steps(model, optimizer, 1)
        return ""
    with gm.watch(model, optimizer, transform=gm.guard.skip_spikes("loss")):
        try:
            steps(model, optimizer, 1)
        except gm.TransformError as error:
            return str(error)
    return "nothing was said"
