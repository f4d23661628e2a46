"""Batch normalisation as its node shows it, whoever called it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmedic as gm
from gradmedic.probes.batch_norms import batch_norm_nodes, batch_norm_numbers
from gradmedic.probes.graph import walk


def numbers(output: torch.Tensor) -> list[dict[str, float]]:
    found = batch_norm_nodes(walk([output.sum()]))
    return [{key: float(value) for key, value in batch_norm_numbers(node).items()} for node in found]


def batch(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_counts(training: bool) -> None:
    [found] = numbers(nn.BatchNorm2d(3).train(training)(batch(4, 3, 2, 5)))
    assert (found["training"], found["samples"], found["values"]) == (float(training), 4, 40)
    assert (found["trains"], found["tracked"]) == (1, 1)
    assert found["virgin"] == (not training)  # the forward pass has written statistics already


def test_tables_and_functions() -> None:
    [found] = numbers(nn.BatchNorm1d(3, affine=False)(batch(6, 3)))
    assert (found["values"], found["trains"], found["tracked"]) == (6, 0, 1)
    [found] = numbers(F.batch_norm(batch(2, 3), None, None, training=True))
    assert (found["values"], found["tracked"], found["training"]) == (2, 0, 1)


def test_frozen_scale() -> None:
    norm = nn.BatchNorm2d(3).requires_grad_(False).eval()
    [found] = numbers(norm(batch(4, 3, 2, 2)))
    assert (found["training"], found["trains"]) == (0, 0)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("samples", [1, 4])
def test_instance_normalisation_is_no_batch_normalisation(affine: bool, samples: int) -> None:
    assert numbers(nn.InstanceNorm2d(3, affine=affine)(batch(samples, 3, 4, 4))) == []


def test_a_single_sample_is_seen() -> None:
    assert numbers(nn.BatchNorm2d(3)(batch(1, 3, 4, 4)))[0]["samples"] == 1
    assert numbers(nn.BatchNorm2d(3, affine=False)(batch(1, 3, 4, 4)))[0]["values"] == 16


def test_rows_are_named_and_calls_are_numbered() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.bare = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.bare(self.norm(self.norm(self.fc(x))))
            return result

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gm.watch(model, optimizer, strict=True, rules=[]) as monitor:
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        rows = [row for row in monitor.latest.modules if row["what"] == "batch_norm"]
    assert [(row["module"], row["call"]) for row in rows] == [("norm", 0), ("norm", 1), ("norm", 2)]
    assert [row["extra"]["trains"] for row in rows] == [1, 1, 0]
