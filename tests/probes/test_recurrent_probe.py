"""Gradients by time step, against those that autograd itself keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradmedic.probes.graph import walk
from gradmedic.probes.recurrent import POINTS, recurrent_rows

LENGTH = 17


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def rows_of(module: nn.Module, loss: torch.Tensor):
    names = {id(p): (name, name.rpartition(".")[0]) for name, p in module.named_parameters()}
    return recurrent_rows(walk([loss]).nodes, lambda tensor: names.get(id(tensor)))


def norms_of(row) -> list[float]:
    return [float(row.extra[f"time_{point}"]) for point in range(POINTS)]


def unrolled(cell: nn.RNNCell, x: torch.Tensor, keep: list[torch.Tensor]) -> torch.Tensor:
    h = torch.zeros(x.shape[0], cell.hidden_size)
    for t in range(x.shape[1]):
        recurrent = h @ cell.weight_hh.t()
        recurrent.retain_grad() if recurrent.requires_grad else None
        keep.append(recurrent)
        h = torch.tanh(x[:, t] @ cell.weight_ih.t() + recurrent)
    return h


def test_norms_are_those_of_the_state_before_its_activation():
    cell, x, keep = nn.RNNCell(3, 5, bias=False), torch.randn(4, LENGTH, 3), []
    loss = unrolled(cell, x, keep).square().sum()
    [row] = rows_of(cell, loss)
    assert all(value != value for value in norms_of(row))  # not before the backward pass
    loss.backward()
    places = [round(point * (LENGTH - 1) / (POINTS - 1)) for point in range(POINTS)]
    expected = [float(keep[t].grad.double().norm()) for t in places]
    assert (row.what, row.leaf, row.extra["steps"]) == ("recurrent", "weight_hh", LENGTH)
    assert norms_of(row) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["RNN", "GRU"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"nonlinearity": "relu"}])
def test_layers_that_torch_does_not_fuse(kind, options):
    if kind == "GRU":
        options = {key: value for key, value in options.items() if key != "nonlinearity"}
    net = nn.ModuleDict({"rnn": getattr(nn, kind)(3, 6, batch_first=True, **options)})
    loss = net["rnn"](torch.randn(4, LENGTH, 3))[0][:, -1].sum()
    rows = rows_of(net, loss)
    loss.backward()
    wanted = [name for name, _ in net["rnn"].named_parameters() if name.startswith("weight_hh")]
    reached = {row.leaf: norms_of(row) for row in rows}
    # At the last step the reverse direction has seen one input only.
    assert set(reached) == set(wanted)
    assert all(row.module == "rnn" and row.extra["steps"] == LENGTH for row in rows)
    forward = [norms for leaf, norms in reached.items() if not leaf.endswith("reverse")]
    assert all(norms[-1] > norms[0] > 0 for norms in forward)  # sigmoid gates and small weights: a decay


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells_in_a_loop(kind):
    net = nn.ModuleDict({"cell": getattr(nn, kind)(3, 6), "head": nn.Linear(6, 2)})
    x, state, logits = torch.randn(4, LENGTH, 3), None, []
    for t in range(LENGTH):
        state = net["cell"](x[:, t], state)
        logits.append(net["head"](state[0] if kind == "LSTMCell" else state))
    loss = torch.stack(logits).square().sum()
    rows = rows_of(net, loss)
    loss.backward()
    # Neither the head nor the input's weight works on what it has made itself.
    assert [(row.module, row.leaf) for row in rows] == [("cell", "weight_hh")]
    assert all(norm > 0 for norm in norms_of(rows[0]))


def test_a_fused_layer_behind_an_embedding():
    lstm = nn.LSTM(3, 6)
    x = torch.randn(LENGTH, 4, 3, requires_grad=True)
    loss = lstm(x * 1.0)[0][-1].sum()
    [row] = rows_of(lstm, loss)
    loss.backward()
    places = [round(point * (LENGTH - 1) / (POINTS - 1)) for point in range(POINTS)]
    assert norms_of(row) == pytest.approx([float(x.grad[t].norm()) for t in places], rel=1e-5)
    assert row.leaf == "weight_hh_l0"


def test_what_is_no_time_axis():
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    side_by_side = torch.stack([layer(x + k) for k in range(LENGTH)]).sum()
    assert rows_of(layer, side_by_side) == []
    short = x
    for _ in range(5):
        short = torch.tanh(layer(short))
    assert rows_of(layer, short.sum()) == []
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(LENGTH)))
    assert rows_of(deep, deep(x).sum()) == []


def test_a_second_pass_over_the_graph_changes_nothing():
    cell = nn.RNNCell(3, 5)
    h = None
    for _ in range(LENGTH):
        h = cell(torch.ones(2, 3), h)
    loss = h.sum()
    [row] = rows_of(cell, loss)
    loss.backward(retain_graph=True)
    first = norms_of(row)
    loss.backward(torch.tensor(5.0))
    assert norms_of(row) == first


def test_gradients_are_bit_identical():
    grads = []
    for watched in (False, True):
        torch.manual_seed(1)
        net = nn.RNN(3, 6, num_layers=2, nonlinearity="relu")
        loss = net(torch.randn(LENGTH, 4, 3))[0].square().sum()
        if watched:
            assert rows_of(net, loss)
        loss.backward()
        grads.append([p.grad.clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
