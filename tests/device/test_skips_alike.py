"""A step that is skipped reads the same whether the host or the device has known it, and its gradients stay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import gradmedic as gm
from gradmedic.clip.norm import scale_to

COLUMNS = (
    "clip_threshold",
    "clip_scale",
    "clipped",
    "transform_scale",
    "transform_threshold",
    "skipped",
    "skip_reason",
)


def train(transform: Any, backend: str, factor: float) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
    """Rows of the record and the gradients that the bad step, the last but one, has left."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    left: list[torch.Tensor] = []
    with gm.watch(model, optimizer, backend=backend, transform=transform, strict=True) as monitor:
        for step in range(6):
            optimizer.zero_grad()
            inputs = torch.randn(16, 8) * (factor if step == 4 else 1.0)
            (model(inputs) - 1).pow(2).mean().backward()
            optimizer.step()
            if step == 4:
                left = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return monitor.run.steps.to_pylist(), left


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e5])
@pytest.mark.parametrize("clip", [gm.clip.norm(1.0), gm.clip.value(0.01)], ids=["norm", "value"])
def test_nothing_of_a_treatment_is_noted_where_the_step_was_skipped(clip: Any, factor: float) -> None:
    guard = gm.clip.chain(
        gm.guard.skip_nonfinite(), gm.guard.breaker(50.0, on_trip=lambda _: None), gm.guard.default(clip)
    )
    native, _ = train(guard, "native", factor)
    device, _ = train(guard, "torch", factor)
    assert native[4]["skipped"]
    for host, other in zip(native, device, strict=True):
        for column in COLUMNS:
            expected = host[column]
            if isinstance(expected, float):
                expected = pytest.approx(expected, rel=1e-6, nan_ok=True)
            assert other[column] == expected, (host["step"], column)
    assert device[4]["transform_scale"] is None
    assert device[4]["clip_threshold"] is None
    assert device[3]["transform_scale"] is not None


def test_the_gradients_of_a_skipped_step_are_left_as_they_are() -> None:
    guard = gm.clip.chain(gm.guard.breaker(50.0, on_trip=lambda _: None), gm.clip.norm(1.0))
    _, native = train(guard, "native", 1e5)
    _, device = train(guard, "torch", 1e5)
    assert max(float(gradient.abs().max()) for gradient in native) > 1e3
    for host, other in zip(native, device, strict=True):
        torch.testing.assert_close(other, host, rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [3e24, 7e24, 1e25, 1.69e199, 2.3, 1e8])
def test_a_second_clip_to_the_same_limit_does_the_same_whichever_way_the_first_one_rounds(size: float) -> None:
    limit = torch.ones((), dtype=torch.float64)
    none = torch.zeros((), dtype=torch.int64)
    size_now = torch.tensor(size, dtype=torch.float64)
    results = set()
    for norm in (size_now, torch.nextafter(size_now, limit), torch.nextafter(size_now, size_now * 2)):
        first = scale_to(limit, norm, none, 0.0)
        for brought in (norm * first, torch.nextafter(limit, limit * 0), torch.nextafter(limit, limit * 2)):
            results.add(round(float(scale_to(limit, brought, none)), 12))
    assert results == {round(1 / (1 + 1e-6), 12)}
