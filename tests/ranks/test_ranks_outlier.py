"""GM516: the rank whose gradient is out of proportion is named; ranks that only differ are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm

WORLD = 3
CULPRITS = {
    "unscaled inputs": (1, "inputs"),
    "unscaled sharded": (2, "inputs"),
    "loss": (0, ""),
    "masked": (2, "small"),
}
HEALTHY = ("same", "small batches", "unequal batches", "expert absent")
STEPS = 24


class Mixture(nn.Module):
    """Two experts; the second is used by rank 0 only."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.trunk(inputs))
        scale = 1000.0 if distributed.get_rank() == 0 else 0.0
        return self.first(hidden) + (scale * self.second(hidden).tanh() / 1000 if scale else 0.0)


def batch_of(case: str, step: int) -> tuple[torch.Tensor, float]:
    """Return (inputs, factor of the loss) of this rank's batch."""
    rank = distributed.get_rank()
    rows = {"small batches": (64, 2, 64), "unequal batches": (48, 16, 8)}.get(case, (16, 16, 16))[rank]
    seed = step if case == "no sampler" else 1000 * rank + step
    inputs = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    if case.startswith("unscaled") and rank == CULPRITS[case][0]:
        inputs = inputs * 40
    if case == "one hard sample" and (step, rank) == (10, 1):
        inputs = inputs * 30
    factor = {"loss": (60.0, 1.0, 1.0), "masked": (1.0, 1.0, 0.0)}.get(case, (1.0, 1.0, 1.0))[rank]
    return inputs, factor


def train(folder: str, case: str) -> None:
    torch.manual_seed(0)
    inner = Mixture() if case == "expert absent" else nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model = (
        fully_shard(inner)
        if "sharded" in case
        else DistributedDataParallel(inner, find_unused_parameters=case == "expert absent")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with gm.watch(model, optimizer, record=folder, modules_every=5, strict=True):
        for step in range(STEPS):
            inputs, factor = batch_of(case, step)
            (factor * (model(inputs) - inputs[:, :2].sum(1, keepdim=True)).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()


def train_each(folder: str) -> None:
    for case in (*CULPRITS, *HEALTHY, "one hard sample", "no sampler"):
        train(f"{folder}/{case}", case)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("outlier")
    run_on_ranks(train_each, str(made), world=WORLD)
    return made


@pytest.mark.parametrize("case", CULPRITS)
def test_the_rank_that_is_out_of_proportion_is_named(folders, case):
    run = gm.open_run(folders / case)
    found = [finding for finding in gm.diagnose(run) if finding.code == "GM516"]
    rank, variant = CULPRITS[case]
    assert [(finding.variant, finding.severity, finding.step) for finding in found] == [(variant, "warning", 0)]
    (finding,) = found
    assert f"rank {rank}" in finding.message
    assert finding.where[0] in run.matrix("norm")[1]
    times = next(each.value for each in finding.evidence if "local gradient norm over" in each.name)
    norms = np.array([[np.linalg.norm(row) for row in run.matrix("local_norm", rank=at)[2]] for at in range(WORLD)])
    sampled = np.isfinite(norms).all(axis=0)
    others = np.median(np.delete(norms[:, sampled], rank, axis=0), axis=0)
    assert times == pytest.approx(float(np.median(norms[rank, sampled] / others)))
    assert ("inputs" in variant) == (case.startswith("unscaled"))
    chinese = next(each for each in gm.diagnose(run, lang="zh") if each.code == "GM516")
    assert f"rank {rank}" in chinese.message


@pytest.mark.parametrize("case", HEALTHY)
def test_ranks_that_only_differ_are_not_accused(folders, case):
    found = gm.diagnose(gm.open_run(folders / case))
    assert [finding for finding in found if finding.code in ("GM110", "GM516", "GM517")] == []


def test_a_batch_of_its_own_that_made_one_step_is_a_note(folders):
    found = [finding for finding in gm.diagnose(gm.open_run(folders / "one hard sample")) if finding.code == "GM516"]
    assert [(finding.variant, finding.severity, finding.step) for finding in found] == [("once", "info", 10)]
    assert "rank 1" in found[0].message


def test_ranks_that_are_given_the_same_batches_are_told_so(folders):
    run = gm.open_run(folders / "no sampler")
    found = [finding for finding in gm.diagnose(run) if finding.code == "GM517"]
    assert [(finding.severity, finding.step, finding.evidence[0].value) for finding in found] == [("warning", 0, 8)]
    assert f"All {WORLD} ranks" in found[0].message
    assert run.noise_scale().reason == "same"


def test_the_batch_of_the_culprit_can_be_found_again(folders):
    run = gm.open_run(folders / "unscaled inputs")
    (finding,) = (each for each in gm.diagnose(run) if each.code == "GM516")
    said = {each.name: each.value for each in finding.evidence}
    rows = [
        dict(row["extra"])
        for row in run.modules.to_pylist()
        if (row["what"], row["rank"], row["step"], row["call"]) == ("batch", 1, finding.step, 0)
    ]
    assert said["fingerprint of its batch"] == rows[0]["fingerprint"]
    assert said["inputs' rms over that of the other ranks"] == pytest.approx(40, rel=0.3)


def test_one_process_measures_nothing(tmp_path):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, record=tmp_path / "run", strict=True) as monitor:
        model(torch.ones(3, 4)).sum().backward()
        assert model.weight._post_accumulate_grad_hooks is None
        optimizer.step()
        assert "local_norm" not in monitor.latest.tensors.columns
    assert gm.open_run(tmp_path / "run").noise_scale().reason == "one_rank"


def test_the_noise_scale_of_the_record(folders):
    run = gm.open_run(folders / "same")
    found = run.noise_scale()
    assert found.ranks == WORLD
    assert found.steps.tolist() == [0, 1, 2, 4, 5, 10, 15, 20]
    small = np.array([np.square(run.matrix("local_norm", rank=rank)[2]).sum(axis=1) for rank in range(WORLD)]).T
    big = np.square(run.matrix("norm")[2]).sum(axis=1)
    small, big = small[found.steps], big[found.steps]
    signal = ((WORLD * big - small.mean(axis=1)) / (WORLD - 1)).mean()
    noise = ((small.mean(axis=1) - big) / (1 - 1 / WORLD)).mean()
    assert found.ratio == pytest.approx(noise / signal / WORLD)
    assert found.examples == pytest.approx(noise / signal * 16)  # rows of a rank's batch
    assert run.noise_scale(last=2).steps.tolist() == [15, 20]
    assert "global batches" in str(found)
