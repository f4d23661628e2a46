"""Small trainings that the hook tests share, and what an unwatched run of them gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

Norms = list[dict[str, float]]


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Small tensors on a busy machine are computed an order of magnitude faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches(steps: int, seed: int = 1, rows: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(rows, 8, generator=source), torch.randint(0, 4, (rows,), generator=source)) for _ in range(steps)
    ]


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[tuple[torch.Tensor, torch.Tensor]],
    loss_of: Callable[..., torch.Tensor] = cross_entropy,
    named: nn.Module | None = None,
) -> tuple[list[float], Norms]:
    """Train, and return the losses and the gradients' norms as a user would compute them, in float64."""
    losses: list[float] = []
    norms: Norms = []
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(gradient_norms(named or model))
        optimizer.step()
    return losses, norms


def gradient_norms(model: nn.Module) -> dict[str, float]:
    return {
        name: float(p.grad.detach().to_dense().double().norm())
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def bit_identical(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def recorded_norms(run: object, optimizer: str | None = None) -> Norms:
    """Return what a run holds, in the form of `train`'s second result."""
    steps, names, values = run.matrix("norm", optimizer)  # type: ignore[attr-defined]
    return [{name: float(v) for name, v in zip(names, row, strict=True) if v == v} for row in values[range(len(steps))]]


def module_hooks(model: nn.Module) -> int:
    """Return how many hooks of any kind lie on the modules, the parameters and the state dict."""
    kinds = [key for key in vars(nn.Module()) if key.endswith("_hooks")]
    on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    on_tensors = sum(
        len(p._backward_hooks or ()) + len(getattr(p, "_post_accumulate_grad_hooks", None) or ())
        for p in model.parameters()
    )
    return on_modules + on_tensors
