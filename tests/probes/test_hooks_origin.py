"""Where a non-finite loss came from: told from the graph, class, place, operation, rows, shape and dtype."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradmedic.names import name_parameters
from gradmedic.probes.forward_origin import find_forward_origin
from gradmedic.probes.origin import Origin

NAN, INF = float("nan"), float("inf")


def origin_of(model: nn.Module, loss: torch.Tensor) -> Origin:
    names = name_parameters({"": model})

    def name_of(parameter):
        entry = names.get(id(parameter))
        return (entry.name, entry.module) if entry else None

    assert not torch.isfinite(loss).all()
    found = find_forward_origin([loss], name_of)
    loss.backward()  # the graph must still be whole
    json.dumps(found.to_event(), allow_nan=False)
    return found


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def data() -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def cross_entropy(out: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, torch.tensor([0, 1, 2, 0, 1]))


class Two(nn.Module):
    """Two layers with something of one's own between them."""

    def __init__(self, between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.between = nn.Linear(4, 8), nn.Linear(8, 3), between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_row_of_the_data(value):
    """R41: a non-finite value in one input row: the data, with the row, and the layer that was given it."""
    x = data()
    x[3, 1] = value
    model = net()
    found = origin_of(model, cross_entropy(model(x)))
    assert (found.kind, found.where, found.rows) == ("data", ("input",), (3,))
    assert (found.shape, found.dtype) == ((5, 4), "float32")
    assert found.nan_count + found.inf_count == 1
    assert "0" in found.detail


def test_several_rows_are_listed_up_to_ten():
    """R41: the first ten rows are listed."""
    model, x = nn.Linear(4, 3), torch.full((40, 4), NAN)
    found = origin_of(model, model(x).sum())
    assert found.rows == tuple(range(10))
    assert found.nan_count == 160


def test_a_weight():
    """R41: a weight that is not finite explains everything behind it, bad data too."""
    model, x = net(), data()
    x[0] = NAN
    with torch.no_grad():
        model[2].weight[0, 0] = INF
    found = origin_of(model, cross_entropy(model(x)))
    assert (found.kind, found.where, found.inf_count, found.shape) == ("parameter", ("2.weight",), 1, (8, 8))


@pytest.mark.parametrize(
    ("between", "op"),
    [
        (torch.sqrt, "sqrt"),
        (torch.log, "log"),
        (lambda h: (h * 1e3).exp(), "exp"),
        (lambda h: (h * 1e3).exp().relu(), "exp"),
        (lambda h: (h * 1e38).mul(1e3), "mul"),
        (lambda h: h / (h - h), "div"),
        (lambda h: (h.abs() + 2).acos(), "acos"),
        (lambda h: F.dropout((h - 10).log(), 0.5), "log"),
        (lambda h: (h - 10).sqrt().view(5, 2, 4).flatten(1).relu(), "sqrt"),
    ],
    ids=["sqrt", "log", "exp", "exp then relu", "overflow", "0 / 0", "acos", "log, dropout", "sqrt, views"],
)
def test_an_operation_of_the_forward_pass(between, op):
    """R41: the first operation with finite inputs and a non-finite output is named, at the layer before it."""
    model = Two(between)
    found = origin_of(model, cross_entropy(model(data())))
    assert (found.kind, found.where, found.op) == ("forward", ("first",), op)


def test_a_fully_masked_row_of_a_softmax():
    """R43: when a row of an attention mask is all -inf and the NaN reaches the loss, the softmax is named."""

    def attend(h):
        mask = torch.zeros(5, 5).masked_fill(torch.arange(5)[:, None] == 2, -INF)
        return (h @ h.t() + mask).softmax(-1) @ h

    model = Two(attend)
    found = origin_of(model, cross_entropy(model(data())))
    assert (found.kind, found.op, found.shape, found.nan_count) == ("forward", "softmax", (5, 5), 5)


@pytest.mark.parametrize(
    ("loss_of", "op"),
    [
        (lambda out: (out - 100).log().mean(), "log"),
        (lambda out: F.dropout((out - 100).log(), 0.5).mean(), "log"),
        (lambda out: (out * NAN).mean(), "mul"),
        (lambda out: (out - 99).sqrt().sum(), "sqrt"),
    ],
    ids=["log", "log, dropout", "constant factor", "sqrt"],
)
def test_an_operation_of_the_loss(loss_of, op):
    """R41: what is lost behind the last layer is lost in the loss."""
    model = net()
    found = origin_of(model, loss_of(model(data())))
    assert (found.kind, found.where, found.op) == ("loss", ("loss",), op)


def test_sqrt_of_a_negative_then_sqrt():
    """R41: of two operations in a row, the first is named, with the range of what it was given."""
    model = Two(lambda h: (h - 3).sqrt().sqrt())
    found = origin_of(model, cross_entropy(model(data())))
    assert (found.kind, found.op, found.where) == ("forward", "sqrt", ("first",))


def test_convolutions_with_batch_norm_and_in_place_relu():
    """R41: saved tensors that were changed in place since are passed over; the data is found."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
    )
    images = torch.randn(5, 1, 4, 4)
    images[2, 0, 1, 1] = INF
    found = origin_of(model, cross_entropy(model(images)))
    assert (found.kind, found.rows, found.shape) == ("data", (2,), (5, 1, 4, 4))


def test_an_operation_between_convolutions():
    """R41: a logarithm between two convolutions is named, although an in-place ReLU follows."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv1d(1, 2, 3), nn.Conv1d(2, 1, 3)

        def forward(self, x):
            return self.b(F.relu((self.a(x) - 9).log(), inplace=True)).mean()

    torch.manual_seed(0)
    model = Net()
    found = origin_of(model, model(torch.randn(3, 1, 16)))
    assert (found.kind, found.op, found.where) == ("forward", "log", ("a",))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_region(reentrant):
    """R41: a region whose values were not kept is looked into, or passed by; the random state stays."""
    model = Two(lambda h: checkpoint(lambda v: F.dropout((v - 9).log(), 0.1), h, use_reentrant=reentrant))
    loss = cross_entropy(model(data()))
    state = torch.get_rng_state()
    found = origin_of(model, loss)
    assert found.kind in ("forward", "loss", "unknown")
    assert reentrant or (found.kind, found.op) == ("forward", "log")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_compiled_graph_does_not_crash():
    """R7: a compiled graph has one node; the search says what it can and raises nothing."""
    torch._dynamo.reset()
    model = Two(torch.log)
    fast = torch.compile(model, backend="aot_eager")
    found = origin_of(model, cross_entropy(fast(data() - 5)))
    assert found.kind in ("forward", "loss", "unknown")


def test_roots_that_are_leaves_or_several():
    """R41: a leaf as root, an empty list of layers, and several roots."""
    leaf = nn.Parameter(torch.tensor(NAN))
    holder = nn.ParameterList([leaf])
    assert origin_of(holder, leaf).where == ("0",)
    model, x = net(), data()
    bad = x.clone()
    bad[1] = NAN
    found = find_forward_origin([model(x).sum(), model(bad).sum()], lambda _: None)
    assert (found.kind, found.rows) == ("data", (1,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.filterwarnings("ignore:Complex modules")
def test_other_dtypes(dtype):
    """R61: doubles, half floats and complex numbers are looked at alike."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(dtype)
    x = data().to(dtype)
    x[4, 0] = NAN
    found = origin_of(model, model(x).abs().sum())
    assert (found.kind, found.rows, found.dtype) == ("data", (4,), str(dtype).removeprefix("torch."))


def test_finding_an_origin_changes_no_gradient():
    """R41: the search reads; the gradients after it are those without it."""
    grads = []
    for search in (False, True):
        model, x = net(), data()
        x[3, 1] = NAN
        loss = cross_entropy(model(x))
        if search:
            find_forward_origin([loss], lambda _: None)
        loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
