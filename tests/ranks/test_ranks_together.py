"""Treatment of replicas: all ranks or none, also where nothing but the gradients' own reduction joins them.

R48: nothing that one rank decides alone makes another wait. R66: offloaded shards. Trap 20: no rank skips or raises
alone.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm
from gradmedic.stats import agreement


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, at: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(10 * at + distributed.get_rank())
    model(torch.randn(8, 4, generator=generator) * scale).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def weights_of(model: nn.Module) -> np.ndarray:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()


def leave(how: str, folder: str) -> dict[str, Any]:
    """The second rank stops to treat after two steps; the first one goes on without treatment, or both drift apart."""
    agreement.PATIENCE = timedelta(seconds=2)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    second = distributed.get_rank() == 1
    with gm.watch(model, optimizer, transform=gm.clip.norm(0.01), record=f"{folder}/{how}") as monitor:
        for at in range(2):
            step(model, optimizer, at)
        clipped = monitor.latest.clipped
        if how == "closed" and second:
            monitor.close()
        if how == "fault" and second:
            monitor.isolation.failed("transform", ValueError("ours"))
        if how == "paused by all" or (how == "paused" and second):
            with monitor.paused():
                step(model, optimizer, 2)
        else:
            step(model, optimizer, 2)
        for at in range(3, 5):
            step(model, optimizer, at)
        later = monitor.latest.clipped
    messages = [event["message"] for event in gm.open_run(f"{folder}/{how}").events if event["kind"] == "error"]
    return {"clipped": clipped, "later": later, "weights": weights_of(model), "messages": messages}


HOWS = ("closed", "fault", "paused", "paused by all")


def leave_each(folder: str) -> dict[str, dict[str, Any]]:
    return {how: leave(how, folder) for how in HOWS}


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> list[dict[str, dict[str, Any]]]:
    return run_on_ranks(leave_each, str(tmp_path_factory.mktemp("left")))


@pytest.mark.parametrize("how", HOWS)
def test_a_replica_that_is_no_longer_treated_takes_the_treatment_from_all(how, left):
    first, second = (found[how] for found in left)
    assert [first["clipped"], second["clipped"]] == [True, True], (first, second)
    assert first["later"] == (how == "paused by all")
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert any("stopped" in message for message in first["messages"]) == (how != "paused by all")


def only_first(kind: str) -> str:
    agreement.PATIENCE = timedelta(seconds=1)
    model: nn.Module = build()
    if kind == "replicas":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if distributed.get_rank():
        step(model, optimizer, 0)
        return ""
    with gm.watch(model, optimizer, transform=gm.clip.norm(0.01), strict=True) as monitor:
        try:
            step(model, optimizer, 0)
        except gm.TransformError as error:
            return str(error)
        assert monitor.latest.clipped
        assert not monitor._watcher.agreement._verdicts  # nobody was waited for
    return "treated"


def each_kind() -> list[str]:
    return [only_first("replicas"), only_first("models of their own")]


def test_treating_one_replica_alone_is_refused_and_a_model_of_its_own_is_not():
    (refused, treated), _ = run_on_ranks(each_kind)
    assert "on every rank" in refused
    assert treated == "treated"


def in_join(guard: str) -> dict[str, Any]:
    rank = distributed.get_rank()
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    transform = gm.guard.skip_spikes("loss") if guard == "loss" else gm.clip.norm(0.01)
    said = ""
    with gm.watch(model, optimizer, transform=transform, strict=True) as monitor:
        try:
            with Join([model]):
                for at in range(2 + rank):
                    step(model, optimizer, at)
        except gm.TransformError as error:
            said = str(error)
        return {"said": said, "weights": weights_of(model), "steps": monitor.latest.step if monitor.latest else None}


def test_a_guard_on_the_loss_is_refused_where_ranks_make_different_numbers_of_steps():
    for found in run_on_ranks(in_join, "loss"):
        assert "join()" in found["said"]


def test_other_transforms_are_fine_there():
    first, second = run_on_ranks(in_join, "norm")
    assert first["said"] == second["said"] == ""
    assert (first["steps"], second["steps"]) == (1, 2)


def one_step_and_away() -> bool:
    """One rank is ahead: both have met, and it has made its only step and gone before the other looks who is there."""
    rank = distributed.get_rank()
    ask = agreement._ask

    def dawdle(*arguments: Any) -> bool:
        answer = ask(*arguments)
        time.sleep(1.0)
        return answer

    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), strict=True) as monitor:
        model(torch.ones(2, 4)).square().mean().backward()
        agreement._ask = dawdle if rank else ask
        try:
            optimizer.step()
        finally:
            agreement._ask = ask
        return monitor.latest.skipped


def test_a_rank_that_is_late_for_the_only_step_makes_it():
    assert run_on_ranks(one_step_and_away) == [False, False]


def odd_losses() -> dict[str, Any]:
    """A loss that is NaN on one rank, whose gradients are not; and one that only the last stage has."""
    rank = distributed.get_rank()
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), strict=True) as monitor:
        loss = model(torch.ones(2, 4)).square().mean() + (math.nan if rank else 0.0)
        loss.backward()
        optimizer.step()
        skipped = monitor.latest.skipped
    stage = build()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    guard = gm.guard.skip_spikes("loss", z=4.0, window=16, min_samples=2)
    groups = {"*": distributed.group.WORLD}
    flags = []
    with gm.watch(stage, optimizer, transform=guard, groups=groups, strict=True) as monitor:
        for at in range(6):
            for parameter in stage.parameters():
                parameter.grad = torch.ones_like(parameter)
            if rank:
                (stage[0].weight.sum() * 0 + (1.0, 1.3, 0.9, 1.2, 1.1, 100.0)[at]).backward()
            optimizer.step()
            flags.append(monitor.latest.skipped)
    return {"skipped": skipped, "weights": weights_of(model), "flags": flags}


def test_one_ranks_own_loss_decides_nothing_alone():
    first, second = run_on_ranks(odd_losses)
    assert first["skipped"] == second["skipped"]
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert first["flags"] == second["flags"] == [False] * 5 + [True]


def wrapped(kind: str) -> tuple[nn.Module, Any]:
    model = build()
    if kind == "offload":
        for layer in (model[0], model[2]):
            fully_shard(layer, offload_policy=CPUOffloadPolicy(pin_memory=False))
        return fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False)), None
    original = kind == "FSDP1, original parameters"
    model = FullyShardedDataParallel(model, use_orig_params=original, device_id=torch.device("cpu"))
    return model, None


KINDS = ("offload", "FSDP1, flat parameters", "FSDP1, original parameters")


def each_wrapping(folder: str) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        model, groups = wrapped(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        path = f"{folder}/{kind}"
        totals, statuses = [], set()
        with gm.watch(
            model, optimizer, transform=gm.clip.norm(0.5), groups=groups, record=path, strict=True
        ) as monitor:
            for at in range(24):
                step(model, optimizer, at)
                frame = monitor.latest
                totals.append((frame.grad_norm, frame.grad_norm_post))
                statuses |= {frame.tensors[name].status for name in frame.tensors.names}
        codes = sorted({(each.code, each.variant) for each in monitor.diagnose() if each.severity != "info"})
        found[kind] = {"totals": totals, "statuses": statuses, "codes": codes}
    return found


@pytest.fixture(scope="module")
def wrappings(tmp_path_factory) -> list[dict[str, Any]]:
    return run_on_ranks(each_wrapping, str(tmp_path_factory.mktemp("wrappings")))


@pytest.fixture(scope="module")
def expected() -> list[tuple[float, float]]:
    """What one process with both ranks' batches sees."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for at in range(24):
        inputs = [torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * at + rank)) for rank in range(2)]
        sum(model(each).square().mean() for each in inputs).div(2).backward()
        total = float(gm.clip_grad_norm_(model.parameters(), 0.5))
        found.append((total, float(gm.clip_grad_norm_(model.parameters(), math.inf))))
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_offloaded_and_flattened_shards_give_the_norm_of_the_whole(kind, wrappings, expected):
    for found in wrappings:
        np.testing.assert_allclose(found[kind]["totals"], expected, rtol=1e-4)
        assert not [code for code, variant in found[kind]["codes"] if code in ("GM101", "GM102", "GM103")]
