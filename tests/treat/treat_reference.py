"""A small training run with a bad batch in it, for tests of treatments."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Make = Callable[[nn.Module], torch.optim.Optimizer]


def make_model(seed: int = 0) -> nn.Module:
    """A small network, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))


def batches(count: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of so many steps."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(16, 6, generator=generator), torch.randn(16, 1, generator=generator)) for _ in range(count)]


def spoiled(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch with one NaN in it."""
    inputs = batch[0].clone()
    inputs[3, 2] = math.nan
    return inputs, batch[1]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    scaler: Any = None,
    before_step: Callable[[], None] | None = None,
) -> None:
    """A plain loop."""
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean()
        if scaler is None:
            loss.backward()
            if before_step is not None:
                before_step()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if before_step is not None:
                before_step()
            scaler.step(optimizer)
            scaler.update()


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Everything that a step may change; state that Adam has only begun with, zeros at step 0, counts as none."""
    state = copy.deepcopy(optimizer.state_dict()["state"])
    return copy.deepcopy(model.state_dict()), {key: each for key, each in state.items() if not _only_begun(each)}


def _only_begun(state: dict[str, Any]) -> bool:
    tensors = [each for each in state.values() if isinstance(each, torch.Tensor)]
    return "exp_avg" in state and all(not each.any() for each in tensors)


def assert_same(first: Any, second: Any, where: str = "") -> None:
    """Bit-identical, through any nesting."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second), where
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), where
        for at, (one, two) in enumerate(zip(first, second, strict=True)):
            assert_same(one, two, f"{where}[{at}]")
    else:
        assert first == second, where
