"""Gradients of one rank alone, before the reduction: against a model of the same weights that nobody reduces."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
#: Sampled steps of a run of 7 with one sample in 5 after the first three.
SAMPLED = (0, 1, 2, 4, 5)
STEPS = 7
DDP = {
    "plain": {},
    "bucket view": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "static bucket view": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused allowed": {"find_unused_parameters": True},
    "bf16 hook": {},
    "no sync": {},
    "synchronised twice": {},
    "zeros": {},
    "watched inside": {},
    "loss scale": {},
}
SHARDED = ("fsdp", "fsdp bf16", "fsdp no sync", "fsdp synchronised twice")


def compress(_state, bucket):
    """Reduce in bfloat16, as torch's own hook of that kind does, which insists on NCCL."""
    low = bucket.buffer().bfloat16().div_(distributed.get_world_size())
    work = distributed.all_reduce(low, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))


def inner_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def wrapped(inner: nn.Sequential, scheme: str) -> nn.Module:
    if scheme.startswith("fsdp"):
        low = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if "bf16" in scheme else MixedPrecisionPolicy()
        fully_shard(inner[2], mp_policy=low)
        return fully_shard(inner, mp_policy=low)
    model = DistributedDataParallel(inner, **DDP[scheme])
    if scheme == "bf16 hook":
        model.register_comm_hook(None, compress)
    return model


def batches(scheme: str, step: int) -> list[torch.Tensor]:
    rank = distributed.get_rank()
    count = 3 if "no sync" in scheme or "twice" in scheme else 1
    return [
        torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + 10 * at + rank)) * (1 + 9 * rank)
        for at in range(count)
    ]


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).float().square().mean()


def train(scheme: str, watched: bool) -> tuple[dict[int, dict[str, tuple[float, float]]], list[torch.Tensor]]:
    """Return (step -> tensor -> (measured, expected local norm), the weights at the end)."""
    model = wrapped(inner := inner_model(), scheme)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scheme == "loss scale")
    frames: dict[int, dict[str, tuple[float, float]]] = {}
    target = inner if scheme == "watched inside" else model
    monitor = gm.watch(target, optimizer, modules_every=5, strict=True) if watched else None
    for step in range(STEPS):
        inputs = batches(scheme, step)
        expected = reference(inner, scheme, inputs) if watched else {}
        for at, batch in enumerate(inputs):
            last = at == len(inputs) - 1
            if "no sync" in scheme and scheme.startswith("fsdp"):
                model.set_requires_gradient_sync(last)
            if scheme == "no sync" and not last:
                with model.no_sync():
                    loss_of(model, batch).backward()
            else:
                scaler.scale(loss_of(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=scheme != "zeros")
        if monitor is not None:
            columns = monitor.latest.tensors.columns
            names = monitor.latest.tensors.names
            assert ("local_norm" in columns) == ("local_nonfinite" in columns)
            if "local_norm" in columns:
                values = dict(zip(names, columns["local_norm"], strict=True))
                frames[step] = {name: (float(values[name]), expected[name]) for name in NAMES}
                assert np.nansum(columns["local_nonfinite"]) == 0
    if monitor is not None:
        monitor.close()
    for module in model.modules():
        for parameter in module._parameters.values():
            assert not getattr(parameter, "_post_accumulate_grad_hooks", None)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return frames, [weight.detach().clone() for weight in weights]


def reference(inner: nn.Module, scheme: str, inputs: list[torch.Tensor]) -> dict[str, float]:
    twin = inner_model()
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in inner.state_dict().items()
    }
    twin.load_state_dict(copy.deepcopy(whole))
    if "bf16" in scheme and scheme.startswith("fsdp"):
        twin.to(torch.bfloat16)
        inputs = [batch.bfloat16() for batch in inputs]
    for batch in inputs:
        loss_of(twin, batch).backward()
    return {name: float(parameter.grad.double().norm()) for name, parameter in twin.named_parameters()}


def measure_all(schemes: list[str]) -> dict[str, tuple[dict, bool]]:
    made = {}
    for scheme in schemes:
        frames, weights = train(scheme, watched=True)
        _, unwatched = train(scheme, watched=False)
        made[scheme] = frames, all(torch.equal(a, b) for a, b in zip(weights, unwatched, strict=True))
    return made


@pytest.fixture(scope="module")
def measured():
    return run_on_ranks(measure_all, [*DDP, *SHARDED])


@pytest.mark.parametrize("scheme", [*DDP, *SHARDED])
def test_local_norms_are_those_of_an_unreduced_model(measured, scheme):
    for rank in (0, 1):
        frames, same = measured[rank][scheme]
        assert same, "watching has changed the weights"
        if "twice" in scheme:  # the first passes' gradients are reduced by the time of the last
            assert frames == {}
            continue
        assert tuple(frames) == SAMPLED
        rough = 1e-2 if "bf16" in scheme and "fsdp" in scheme else 1e-5
        for tensors in frames.values():
            for value, expected in tensors.values():
                assert value == pytest.approx(expected, rel=rough)
