"""GM110: replicas that differ are named where the records of the ranks are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm


def train(folder: str, fault: str) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(rank if fault == "initial" else 0)
    inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = DistributedDataParallel(inner) if fault in ("none", "bypassed", "drift") else inner
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=folder, strict=True):
        for step in range(24):
            torch.manual_seed(100 * step + rank)
            called = inner if fault == "bypassed" else model
            called(torch.randn(8, 4)).square().mean().backward()
            if fault == "drift" and step == 9 and rank == 1:
                with torch.no_grad():
                    inner[2].bias.add_(0.01)
            optimizer.step()
            optimizer.zero_grad()


FAULTS = ("none", "bypassed", "initial", "drift")


def train_each(folder: str) -> None:
    for fault in FAULTS:
        train(f"{folder}/{fault}", fault)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("desync")
    run_on_ranks(train_each, str(made))
    return made


@pytest.mark.parametrize("fault", FAULTS)
def test_replicas_that_differ_are_named_and_those_that_agree_are_not(folders, fault):
    folder = folders / fault
    found = [each for each in gm.diagnose(gm.open_run(folder)) if each.code == "GM110"]
    if fault == "none":
        assert found == []
        return
    finding = found[0]
    assert finding.severity == "error"
    assert finding.variant == {"bypassed": "", "initial": "initial", "drift": "drift"}[fault]
    if fault == "drift":
        # The weights are looked at before each step: those of step 9 were changed before they were read.
        first = gm.open_run(folder)
        steps, names, values = first.matrix("weight_norm", rank=0)
        other = first.matrix("weight_norm", rank=1)[2]
        row, column = (int(at[0]) for at in np.nonzero(values != other))
        assert (finding.step, finding.where[0]) == (int(steps[row]), names[column])
    else:
        assert finding.step == 0


def train_four(folder: str) -> None:
    """Three tensors on four ranks; one of them is changed on rank 2 before step 6, another on rank 3 before step 4."""
    rank = distributed.get_rank()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=folder, strict=True):
        for step in range(10):
            torch.manual_seed(100 * step + rank)
            if (step, rank) in ((6, 2), (4, 3)):
                with torch.no_grad():
                    inner[2].bias.add_(0.1) if rank == 2 else inner[0].weight.mul_(1.1)
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_the_first_differing_tensor_of_each_of_four_ranks(tmp_path):
    run_on_ranks(train_four, str(tmp_path / "run"), world=4)
    found = {each.params["rank"]: each for each in gm.diagnose(gm.open_run(tmp_path / "run")) if each.code == "GM110"}
    assert {rank: (each.step, each.where, each.variant) for rank, each in found.items()} == {
        2: (6, ("2.bias",), "drift"),
        3: (4, ("0.weight",), "drift"),
    }
