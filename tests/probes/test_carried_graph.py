"""Nodes of earlier steps in the graph of this one: counted by hand, and as the rule reads them."""

from __future__ import annotations

import torch
from torch import nn

import gradmedic as gm
from gradmedic.probes.carried_graph import CarriedGraph
from gradmedic.probes.graph import walk


def numbers(probe: CarriedGraph, root: torch.Tensor) -> tuple[float, float] | None:
    rows = probe.rows(walk([root]))
    return (rows[0].extra["nodes"], rows[0].extra["carried"]) if rows else None  # type: ignore[return-value]


def test_a_running_sum_carries_all_that_came_before() -> None:
    weight, probe = torch.ones(3, requires_grad=True), CarriedGraph()
    total, found = torch.zeros(()), []
    for _ in range(4):
        total = total + (weight * 2).sum()  # three nodes a step
        found.append(numbers(probe, total))
    assert found == [None, (6, 3), (9, 6), (12, 9)]


def test_graphs_that_are_let_go_have_no_rows() -> None:
    weight, probe = torch.ones(3, requires_grad=True), CarriedGraph()
    assert [numbers(probe, (weight * 2).sum()) for _ in range(4)] == [None] * 4


def test_one_part_that_is_kept_does_not_grow() -> None:
    weight, probe = torch.ones(3, requires_grad=True), CarriedGraph()
    kept = weight.exp()
    found = [numbers(probe, (kept * weight).sum()) for _ in range(4)]
    assert found == [None, (3, 1), (3, 1), (3, 1)]


def findings(steps: int, window: int) -> list[tuple[str, str]]:
    """A fading context whose graph is dropped every `window` steps; what GM112 says."""
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 8)
    context = torch.zeros(6, 8)
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
    with gm.watch(embedding, optimizer, strict=True, modules_every=20) as monitor:
        for step in range(steps):
            context = context.detach() if step % window == 0 else context
            context = 0.7 * context + embedding(torch.randint(20, (6,)))
            optimizer.zero_grad()
            (context - 1).square().mean().backward(retain_graph=True)
            optimizer.step()
    return [(found.variant, found.severity) for found in monitor.diagnose() if found.code == "GM112"]


def test_a_state_that_is_never_detached() -> None:
    assert findings(45, 1000) == [("carried", "warning")]


def test_a_window_of_truncated_backpropagation() -> None:
    assert findings(85, 1) == []
    assert findings(85, 5) == []
