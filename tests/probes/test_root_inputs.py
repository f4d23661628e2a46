"""What models are fed, functional ones included: do samples differ?"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradmedic.probes.graph import walk
from gradmedic.probes.loss_graph import find_losses
from gradmedic.probes.root_inputs import input_rows, prediction_spread, row_spread


def rows_of(loss):
    return input_rows(walk([loss]).nodes, lambda leaf: None)


def test_spread_of_rows():
    assert float(row_spread(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))) == 0.0
    assert float(row_spread(torch.tensor([[1.0, 2.0], [0.0, -2.0]]))) == 2.0
    assert float(row_spread(torch.zeros(4, 3))) == 0.0
    assert float(row_spread(torch.tensor([[1, 5], [1, 4]]))) == pytest.approx(0.2)


MODELS = {
    "linear": (nn.Linear(12, 2), (8, 12)),
    "linear, time": (nn.Linear(12, 2), (8, 5, 12)),
    "convolution": (nn.Conv2d(3, 2, 3), (8, 3, 6, 6)),
    "layer norm": (nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 2)), (8, 12)),
    "batch norm": (nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 2)), (8, 12)),
    "lstm": (nn.LSTM(12, 4, batch_first=True), (8, 5, 12)),
}


@pytest.mark.parametrize("name", MODELS)
def test_samples_that_differ_and_samples_that_do_not(name):
    model, shape = MODELS[name]

    def spread(x):
        out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        return max(float(row.extra["row_spread"]) for row in rows_of(out.square().mean()))

    assert spread(torch.randn(shape)) > 0.1
    assert spread(torch.zeros(shape)) == 0.0


def test_functional_models_and_ids():
    weight, table = torch.randn(12, 2, requires_grad=True), torch.randn(9, 12, requires_grad=True)
    assert float(rows_of((torch.zeros(8, 12) @ weight).sum())[0].extra["row_spread"]) == 0.0
    ids = torch.full((8, 5), 3)
    assert float(rows_of(F.embedding(ids, table).sum())[0].extra["row_spread"]) == 0.0
    assert float(rows_of(F.embedding(torch.randint(0, 9, (8, 5)), table).sum())[0].extra["row_spread"]) > 0


def test_positions_say_nothing():
    table = torch.randn(9, 12, requires_grad=True)
    [positions] = rows_of(F.embedding(torch.arange(9), table).sum())
    assert math.isnan(float(positions.extra["row_spread"]))
    assert rows_of(F.embedding(torch.arange(9)[None].expand(8, 9), table).sum()) == []


def test_spread_of_predictions():
    model = nn.Linear(4, 3)
    for x, expected in ((torch.randn(6, 4), False), (torch.ones(6, 4), True)):
        [call] = find_losses([F.cross_entropy(model(x), torch.arange(6) % 3)])
        assert (float(prediction_spread(call)["row_spread"]) < 1e-6) == expected
