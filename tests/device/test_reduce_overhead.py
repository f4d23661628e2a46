"""`torch.compile(mode="reduce-overhead")`: on a CPU it makes no graphs of its own, but is compiled and run as usual."""

from __future__ import annotations

import torch
from torch import nn

import gradmedic as gm


def train(model: nn.Module, run, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (run(torch.full((3, 4), float(step + 1))) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4, bias=False)


def test_it_runs_and_the_numbers_are_those_of_eager_mode(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # no processes of its own
    plain, model = make(), make()
    losses = train(plain, plain)
    try:
        fast = torch.compile(model, mode="reduce-overhead")
        with gm.watch(model, backend="torch", transform=gm.clip.norm(1e9), strict=True) as monitor:
            found = train(model, fast)
    finally:
        torch._dynamo.reset()
    torch.testing.assert_close(found, losses)
    torch.testing.assert_close(model.weight, plain.weight)
    assert monitor.run.series("loss").tolist() == found
    assert monitor.overhead.host_syncs == 0
