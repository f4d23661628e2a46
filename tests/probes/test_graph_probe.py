"""The probe as a whole: it changes nothing, computes nothing again, keeps nothing, and never fails the host."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from graph_named import probe_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradmedic.probes.graph_samples import GraphProbe
from gradmedic.probes.inputs import sample_inputs


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def network() -> nn.Sequential:
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    return nn.Sequential(nn.Embedding(20, 16), encoder, nn.Linear(16, 20))


def loss_of(model: nn.Module) -> torch.Tensor:
    ids = torch.arange(48).reshape(4, 12) % 20
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def test_gradients_and_random_numbers_are_bit_identical():
    grads, states = [], []
    for watched in (False, True):
        torch.manual_seed(1)
        model = network()
        loss = loss_of(model)
        if watched:
            probe = probe_of(model)
            kinds = {row.what for row in probe.sample([loss])}
            assert kinds >= {"loss", "activation", "attention", "batch", "embedding"}
            assert probe.loss_facts([loss])
        loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
        states.append(torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert torch.equal(*states)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_region_is_not_computed_again(reentrant):
    calls: list[int] = []
    inner, head = nn.Linear(6, 6), nn.Linear(6, 3)

    def region(x):
        calls.append(1)
        return F.relu(inner(x))

    x = torch.randn(5, 6, requires_grad=True)
    loss = F.cross_entropy(head(checkpoint(region, x, use_reentrant=reentrant)), torch.zeros(5, dtype=torch.long))
    rows = probe_of(nn.ModuleDict({"inner": inner, "head": head})).sample([loss])
    assert [row.what for row in rows] == ["loss"]
    assert len(calls) == 1


def test_saved_tensors_on_disk_are_left_there():
    """Hooks that pack what is saved are not run for activations."""
    unpacked: list[int] = []
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def unpack(tensor):
        unpacked.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = model(torch.randn(5, 6)).sum()
    assert probe_of(model).sample([loss]) == []
    assert unpacked == []


def test_an_activation_that_was_changed_in_place_since_is_left_out():
    first, last = nn.Linear(6, 8), nn.Linear(8, 3)
    hidden = F.relu(first(torch.randn(5, 6)))
    loss = last(hidden).sum()
    hidden.detach().add_(1.0)
    rows = probe_of(nn.ModuleDict({"first": first, "last": last})).sample([loss])
    assert {row.what for row in rows}.isdisjoint({"activation", "loss"})


def test_a_compiled_graph_shows_nothing_and_does_not_fail():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    compiled = torch.compile(model, backend="aot_eager")
    loss = F.cross_entropy(compiled(torch.randn(5, 6)), torch.zeros(5, dtype=torch.long))
    assert [row.what for row in probe_of(model).sample([loss])] == ["loss"]
    torch._dynamo.reset()


def test_no_tensor_of_the_graph_is_kept():
    model = network()
    probe = probe_of(model)
    loss = loss_of(model)
    rows = probe.sample([loss])
    held = weakref.ref(loss)
    sizes = [t.numel() for row in rows for t in (row.numbers | row.extra).values() if isinstance(t, torch.Tensor)]
    assert set(sizes) == {1}
    assert not any(t.requires_grad for row in rows for t in row.extra.values() if isinstance(t, torch.Tensor))
    del loss
    gc.collect()
    assert held() is None


def test_a_fault_switches_the_probe_off_and_is_told_once():
    told: list[str] = []

    def broken(_tensor):
        raise KeyError("no")

    probe = GraphProbe(broken, lambda part, _error: told.append(part))
    model = network()
    assert probe.sample([loss_of(model)]) == []
    assert probe.sample([loss_of(model)]) == []
    assert probe.loss_facts([loss_of(model)]) == []
    assert told == ["graph samples"]


def test_functorch_and_meta_tensors_are_left_alone():
    model = nn.Linear(4, 2)
    probe = probe_of(model)

    def inside(x):
        assert probe.sample([model(x).sum()]) == []
        return model(x).sum()

    torch.func.grad(inside)(torch.randn(3, 4))
    with torch.device("meta"):
        far = nn.Linear(4, 2)
        assert probe.sample([far(torch.ones(3, 4)).sum()]) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_floating_type(dtype):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    loss = F.cross_entropy(model(torch.randn(12, 6, dtype=dtype)), torch.arange(12) % 3)
    [fact] = probe_of(model).loss_facts([loss])
    assert fact.numbers["loss"] == pytest.approx(loss.item(), rel=0.02)
    assert {row.what for row in probe_of(model).sample([loss])} >= {"loss", "activation", "batch"}


def test_autocast():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(12, 6)), torch.arange(12) % 3)
    rows = [row for row in probe_of(model).sample([loss]) if row.what in ("loss", "activation")]
    assert [(row.what, row.module) for row in rows] == [("loss", "2"), ("activation", "0")]
    assert float(rows[0].extra["log_z"]) > 0


def test_rows_go_through_a_parcel():
    """What the record writes: plain numbers."""
    model = network()
    tensors: list[torch.Tensor | None] = []

    def add(tensor):
        tensors.append(tensor)
        return len(tensors) - 1

    rows = [
        sample.pack(add, lambda place: tensors[place].numpy()) for sample in probe_of(model).sample([loss_of(model)])
    ]
    made = [row() for row in rows]
    assert {row["what"] for row in made} >= {"loss", "activation", "attention", "batch", "embedding"}
    assert all(isinstance(value, float) for row in made for value in row["extra"].values())


def test_the_most_frequent_id_and_the_spread_of_features():
    ids = torch.zeros(8, 50, dtype=torch.long)
    ids[:, :20] = torch.arange(8 * 20).reshape(8, 20) + 1
    table = torch.randn(64, 3, dtype=torch.float64) * torch.tensor([1.0, 200.0, 0.0])
    seen = [sample.fact(sample.values.numpy()) for sample in sample_inputs((ids, table, torch.randn(4)), {}, 0)]
    assert seen[0].mode_share == pytest.approx(0.6)
    assert seen[0].feature_ratio is None
    spread = table.std(0)
    assert seen[1].feature_ratio == pytest.approx((spread[1] / spread[0]).item(), rel=1e-6)
    assert (seen[2].mode_share, seen[2].feature_ratio) == (None, None)


class _Reads(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in (
            "_local_scalar_dense",
            "item",
            "nonzero",
            "unique",
            "_unique2",
            "bincount",
            "masked_select",
            "equal",
        ):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_a_sample_waits_for_nothing():
    model = network()
    probe = probe_of(model)
    mse = nn.Linear(6, 2)
    losses = [loss_of(model), F.mse_loss(mse(torch.randn(300, 6)), torch.randn(300, 2))]
    with _Reads() as reads:
        assert probe.sample(losses)
        sample_inputs((torch.zeros(4, 9, dtype=torch.long), torch.randn(32, 4)), {}, 0)
    assert reads.seen == []
