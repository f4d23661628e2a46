"""A value that one rank has lost is lost on all after the reduction: the rank that lost it is named."""

from __future__ import annotations

import math

import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm


class Root(torch.autograd.Function):
    """A square root whose derivative at 0 is infinite, behind a mask that hides its value."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * math.inf


def train(folder: str, scheme: str, fault: str, bad: int) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = fully_shard(model) if scheme == "fsdp" else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=folder, strict=True):
        for step in range(8):
            torch.manual_seed(100 * step + rank)
            inputs = torch.randn(8, 4)
            # Gradients before the reduction are measured at step 4, and not at step 5.
            now = step == (4 if fault == "measured" else 5) and rank == bad
            if now and fault == "data":
                inputs[3, 2] = math.nan
            output = model(inputs)
            loss = (Root.apply(output) if now and fault != "data" else output).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


RUNS = {"data-ddp": ("ddp", "data", 1), "data-fsdp": ("fsdp", "data", 1), "backward": ("ddp", "backward", 0)}
RUNS |= {f"measured-{scheme}": (scheme, "measured", 1) for scheme in ("ddp", "fsdp")}


def train_each(folder: str) -> None:
    for name, (scheme, fault, bad) in RUNS.items():
        train(f"{folder}/{name}", scheme, fault, bad)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("culprit")
    run_on_ranks(train_each, str(made))
    return made


@pytest.mark.parametrize("scheme", ["ddp", "fsdp"])
def test_the_rank_whose_data_had_a_nan_is_named(folders, scheme):
    folder = folders / f"data-{scheme}"
    said = [event for event in gm.open_run(folder).events if event["kind"] == "finding"]
    alone = {event.get("rank", 0): event["finding"]["variant"] for event in said if event["finding"]["code"] == "GM201"}
    assert alone == {0: "elsewhere", 1: "data"}  # rank 0 knows no more by itself: its own numbers were finite
    finding = next(each for each in gm.diagnose(gm.open_run(folder)) if each.code == "GM201")
    assert (finding.variant, finding.step) == ("data", 5)
    assert "on rank 1" in finding.message
    assert "batch row 3" in finding.message


def test_a_backward_pass_that_nobody_brought_is_still_one(folders):
    finding = next(each for each in gm.diagnose(gm.open_run(folders / "backward")) if each.code == "GM201")
    assert (finding.variant, finding.step) == ("backward", 5)


@pytest.mark.parametrize("scheme", ["ddp", "fsdp"])
def test_a_backward_pass_is_one_ranks_where_its_gradients_were_measured(folders, scheme):
    run = gm.open_run(folders / f"measured-{scheme}")
    finding = next(each for each in gm.diagnose(run) if each.code == "GM201")
    assert (finding.variant, finding.step) == ("backward", 4)
    assert "on rank 1" in finding.message
    row = run.matrix("local_nonfinite", rank=0)[0].tolist().index(4)
    assert run.matrix("local_nonfinite", rank=0)[2][row].tolist() == [0, 0, 0, 0]
    assert (run.matrix("local_nonfinite", rank=1)[2][row] > 0).all()
