"""Plain tensors of pipeline stages and experts: totals over the groups that the user names, one factor on all ranks.

R67: experts and stages are in the norm, unused ones included, and ranks check that they reached one factor. Trap 20: a
rank without gradients joins in, and errors are raised on all ranks, after the collectives.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn

import gradmedic as gm
from gradmedic.clip.base import BaseTransform, Decision
from gradmedic.clip.operations import Scale
from gradmedic.stats import agreement
from gradmedic.stats.collective import Collective

STEPS = 4


class Toy(nn.Module):
    """Dense layers that every rank has, four experts, and two halves of a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.dense = nn.Linear(4, 4).double()
        self.experts = nn.ModuleList([nn.Linear(4, 4).double() for _ in range(4)])


def gradient_of(name: str, parameter: torch.Tensor, step: int) -> torch.Tensor | None:
    """Known gradients: nothing of the third expert in the second step, as when no token reaches it."""
    if "experts.2" in name and step == 1:
        return None
    generator = torch.Generator().manual_seed(sum(map(ord, name)) * 31 + step)
    return torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * (1 + step)


class Here(nn.Module):
    """What one of `world` ranks has of the model, under the names that it has there."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        whole, share = Toy(), 4 // world
        self.dense = whole.dense
        self.experts = nn.ModuleList(whole.experts[rank * share : (rank + 1) * share])
        first = rank * share
        self.known = {}
        for name, _ in self.named_parameters():
            place = name.split(".")
            if place[0] == "experts":
                place[1] = str(int(place[1]) + first)
            self.known[name] = ".".join(place)


def train(model: nn.Module, known: dict[str, str], transform: Any, groups: Any, spoil: int | None = None) -> list[dict]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    with gm.watch(model, optimizer, transform=transform, groups=groups, strict=True) as monitor:
        for step in range(STEPS):
            for name, parameter in model.named_parameters():
                parameter.grad = gradient_of(known[name], parameter, step)
                if step == spoil and known[name] == "experts.3.bias":
                    parameter.grad[0] = math.nan
            optimizer.step()
            frame = monitor.latest
            found.append(
                {
                    "totals": np.array(
                        [frame.grad_norm, frame.grad_norm_post, frame.clip_scale, frame.transform_scale], dtype=float
                    ),
                    "flags": (frame.clipped, frame.skipped, frame.nonfinite),
                    "norms": {known[n]: frame.tensors[n].norm for n in frame.tensors.names},
                    "weights": {known[n]: p.detach().numpy().copy() for n, p in model.named_parameters()},
                }
            )
    return found


TRANSFORMS = {
    "watched": lambda: None,
    "joint": lambda: gm.clip.norm(2.0),
    "cubic": lambda: gm.clip.norm(2.0, norm_type=3.0),
    "largest": lambda: gm.clip.norm(1.0, norm_type=math.inf),
    "sum": lambda: gm.clip.norm(9.0, norm_type=1.0),
    "by tensor": lambda: gm.clip.norm(0.5, per="tensor"),
    "after value": lambda: gm.clip.chain(gm.clip.value(0.8), gm.clip.norm(2.0)),
    "by weight": lambda: gm.clip.norm(gm.clip.param_ratio(0.5)),
    "adagc": lambda: gm.clip.adagc(warmup=2),
    "skip": lambda: gm.guard.skip_nonfinite(),
    "layers": lambda: gm.clip.layers({"dense": 0.7}, default=2.0),
}


def each_transform() -> dict[str, list[dict]]:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    groups = {"experts": distributed.group.WORLD}
    found = {}
    for name, make in TRANSFORMS.items():
        model = Here(rank, world)
        found[name] = train(model, model.known, make(), groups, spoil=2 if name == "skip" else None)
    return found


def compare(ranks: list[dict[str, list[dict]]]) -> None:
    for name, make in TRANSFORMS.items():
        model = Toy()
        everything = {n: n for n, _ in model.named_parameters()}
        expected = train(model, everything, make(), None, spoil=2 if name == "skip" else None)
        for rank in ranks:
            for step, (one, other) in enumerate(zip(rank[name], expected, strict=True)):
                where = f"{name}, step {step}"
                if name == "by tensor" or name == "adagc":  # whether any was clipped is said of the tensors here
                    assert one["flags"][1:] == other["flags"][1:], where
                else:
                    assert one["flags"] == other["flags"], where
                np.testing.assert_allclose(one["totals"], other["totals"], rtol=1e-9, err_msg=where)
                for tensor, norm in one["norms"].items():
                    np.testing.assert_allclose(norm, other["norms"][tensor], rtol=1e-9, err_msg=where)
                for tensor, weight in one["weights"].items():
                    np.testing.assert_allclose(weight, other["weights"][tensor], rtol=1e-9, atol=1e-12, err_msg=where)
        totals = [[frame["totals"] for frame in rank[name]] for rank in ranks]
        np.testing.assert_array_equal(totals, [totals[0]] * len(totals))  # to the last bit


@pytest.mark.parametrize("world", [2, 4])
def test_experts_are_one_model_with_what_lies_on_the_other_ranks(world):
    compare(run_on_ranks(each_transform, world=world))


def stages() -> dict[str, Any]:
    """Two stages of a pipeline, each on two ranks; the second has a copy of a weight of the first."""
    rank = distributed.get_rank()
    pairs = [distributed.new_group([0, 2]), distributed.new_group([1, 3])]
    mine = pairs[rank % 2]
    model = nn.Module()
    model.register_parameter("own", nn.Parameter(torch.full((3,), 1.0 + rank // 2)))
    model.register_parameter("tied", nn.Parameter(torch.ones(2)))
    groups = {"*": mine} if rank < 2 else {"*": mine, "tied": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    reduce = Collective._reduce
    Collective._reduce = lambda self, values, operation: calls.append(1) or reduce(self, values, operation)
    with gm.watch(model, optimizer, transform=gm.clip.norm(1.0), groups=groups, strict=True) as monitor:
        for _ in range(2):
            model.own.grad = torch.full((3,), 3.0 + rank // 2)
            model.tied.grad = torch.full((2,), 2.0)
            before = len(calls)
            optimizer.step()
        Collective._reduce = reduce
        frame = monitor.latest
        clipper = gm.Clipper(model, 1.0, groups=groups)
        model.own.grad = torch.full((3,), 3.0 + rank // 2)
        model.tied.grad = torch.full((2,), 2.0)
        by_hand = clipper.step()
        return {
            "total": frame.grad_norm,
            "post": frame.grad_norm_post,
            "by hand": (by_hand.grad_norm, by_hand.grad_norm_post),
            "names": frame.tensors.names,
            "calls": len(calls) - before,
        }


def test_stages_of_a_pipeline_and_a_tied_copy_that_counts_once():
    expected = math.sqrt(3 * 9 + 3 * 16 + 2 * 4)
    for found in run_on_ranks(stages, world=4):
        assert found["names"] == ("own", "tied")
        assert found["total"] == pytest.approx(expected, rel=1e-6)
        assert found["post"] == pytest.approx(1.0, rel=1e-5)
        assert found["by hand"] == pytest.approx((expected, 1.0), rel=1e-5)
        assert found["calls"] == 2  # one for the decision, one for the totals of the frame


def drop_in() -> dict[str, Any]:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    found: dict[str, Any] = {}
    for p in (1.0, 2.0, 3.0, math.inf):
        model = Here(rank, world)
        for name, parameter in model.named_parameters():
            parameter.grad = gradient_of(model.known[name], parameter, 1)
        pairs = [(list(model.experts.parameters()), distributed.group.WORLD)]
        total = gm.clip_grad_norm_(model.parameters(), 0.3, p, groups=pairs)
        after = gm.clip_grad_norm_(model.parameters(), math.inf, p, groups=pairs)
        found[str(p)] = float(total), float(after)
    lonely = nn.Parameter(torch.ones(2))
    if rank == 0:
        lonely.grad = torch.tensor([3.0, 4.0])
    found["absent"] = float(gm.clip_grad_norm_([lonely], 1.0, groups=distributed.group.WORLD))
    if rank == 0:
        lonely.grad = torch.tensor([math.nan, 4.0])
    found["sick"] = float(gm.clip_grad_norm_([lonely], 1.0, groups=distributed.group.WORLD))
    try:
        gm.clip_grad_norm_([lonely], 1.0, error_if_nonfinite=True, groups=distributed.group.WORLD)
    except RuntimeError as error:
        found["said"] = str(error)
    used_up = iter([])
    try:
        gm.clip_grad_norm_([lonely], 1.0, groups=[((p for p in used_up), distributed.group.WORLD)])
    except gm.InputError as error:
        found["used up"] = str(error)
    return found


def test_the_drop_in_takes_groups_too():
    model = Toy()
    for name, parameter in model.named_parameters():
        parameter.grad = gradient_of(name, parameter, 1)
    ranks = run_on_ranks(drop_in)
    for p in (1.0, 2.0, 3.0, math.inf):
        expected = float(torch.nn.utils.get_total_norm([q.grad for q in model.parameters() if q.grad is not None], p))
        for found in ranks:
            assert found[str(p)] == pytest.approx((expected, 0.3), rel=1e-4)
    for found in ranks:
        assert found["absent"] == pytest.approx(5.0)
        assert math.isnan(found["sick"])
        assert "NaN or infinite" in found["said"]
        assert "pass a list" in found["used up"]


def mistakes() -> dict[str, str]:
    agreement.PATIENCE = timedelta(seconds=1)
    rank = distributed.get_rank()
    other = distributed.new_group([0])
    both = distributed.group.WORLD
    second = distributed.new_group([0, 1])
    model = Here(rank, 2)
    said = {}
    given = {
        "unknown": {"expertz": both},
        "not mine": {"experts": other},
        "overlap": {"experts.0.*": both, "*rts.0.bias": second},
        "no group": {"experts": "world"},
        "no mapping": both,
    }
    for name, groups in given.items():
        try:
            gm.watch(model, groups=groups).close()
        except gm.InputError as error:
            said[name] = str(error)
    return said


def test_groups_that_do_not_fit_are_refused_before_training():
    first, second = run_on_ranks(mistakes)
    assert "near names" in second["unknown"]
    assert "not in the process group" in second["not mine"]
    assert "not mine" not in first  # rank 0 is in it
    assert "experts.0.bias" in second["overlap"]
    assert "more specific" in second["overlap"]
    assert "process group" in second["no group"]
    assert "mapping" in second["no mapping"]


class ByRank(BaseTransform):
    """A faulty transform, whose factor depends on the rank."""

    def update(self, summary, state):
        factor = torch.tensor(0.5 + 0.1 * distributed.get_rank(), dtype=torch.float64)
        return Decision((Scale(factor),)), state


def part_ways(folder: str, kind: str) -> list[str]:
    model: nn.Module = nn.Linear(2, 1)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        model = torch.distributed.fsdp.fully_shard(model)
    groups = {"*": distributed.group.WORLD} if kind == "stages" else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = f"{folder}/{kind}"
    with gm.watch(model, optimizer, record=path, transform=ByRank(), groups=groups, strict=True):
        for _ in range(2):
            model(torch.ones(2, 2)).sum().backward()
            optimizer.step()
    distributed.barrier()
    return [event["message"] for event in gm.open_run(path).events if event.get("part") == "ranks"]


KINDS = ("ddp", "fsdp", "stages")


def part_each(folder: str) -> dict[str, list[str]]:
    return {kind: part_ways(folder, kind) for kind in KINDS}


def test_ranks_that_do_not_reach_one_factor_are_told(tmp_path):
    said, _ = run_on_ranks(part_each, str(tmp_path))
    for kind in KINDS:
        assert len(said[kind]) == 1, kind
        assert "same clipping factor" in said[kind][0]
