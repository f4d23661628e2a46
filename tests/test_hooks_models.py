"""Models of every kind: they run as unwatched, and their gradients are recorded as a user would compute them."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import gradmedic as gm
from hooks_training import batches, bit_identical, mlp, module_hooks, recorded_norms, sgd, train, weights_of
from hooks_training import single_thread as single_thread


class InPlaceResidual(nn.Module):
    """Convolutions, ReLU(inplace=True), and a residual that is added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Conv1d(4, 4, 3, padding=1)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = self.act(self.stem(x[:, None]))
        y = self.body(x)
        y += x
        return self.head(self.act(y).flatten(1))


class FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).requires_grad_(False)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


class Reused(nn.Module):
    """One ReLU used three times, one layer used twice and bound to two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.shared = nn.Linear(16, 16)
        self.alias = self.shared
        self.act = nn.ReLU()
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.act(self.alias(self.act(self.shared(self.act(self.first(x)))))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.inner(x[:, None]))[:, 0]


class CallsForward(nn.Module):
    """Calls `forward` of its parts instead of calling them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last.forward(self.first.forward(x).relu())


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Tanh())

    def forward(self, x):
        hidden = checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)
        return self.last(checkpoint(lambda h: h.sin(), hidden, use_reentrant=self.reentrant))


class Normed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        layer = nn.Linear(8, 16)
        if kind == "weight_norm":
            layer = parametrizations.weight_norm(layer)
        elif kind == "spectral_norm":
            layer = parametrizations.spectral_norm(layer)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer = nn.utils.weight_norm(layer)
        self.layer, self.head = layer, nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.layer(x).relu())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.cell(x[:, :, None])[0][:, -1])


MODELS = {
    "in-place": InPlaceResidual,
    "frozen backbone": FrozenBackbone,
    "reused": Reused,
    "attention": Attention,
    "forward called": CallsForward,
    "checkpoint": lambda: Checkpointed(False),
    "checkpoint reentrant": lambda: Checkpointed(True),
    "weight_norm": lambda: Normed("weight_norm"),
    "weight_norm old": lambda: Normed("old"),
    "spectral_norm": lambda: Normed("spectral_norm"),
    "recurrent": Recurrent,
}


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_runs_and_is_measured(kind):
    """R14, R15, R22, R32, R50, R51, R56: no error, no warning of ours, the same weights, and every gradient's norm."""
    plain, watched = build(kind), build(kind)
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        _, norms = train(plain, sgd(plain), batches(5))
    optimizer = sgd(watched)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with gm.watch(watched, optimizer, strict=True) as monitor:
            train(watched, optimizer, batches(5))
    assert [str(w.message) for w in found] == [str(w.message) for w in expected]
    assert bit_identical(weights_of(plain), weights_of(watched))
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms
    assert module_hooks(watched) == module_hooks(plain)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "frozen backbone"])
def test_a_sound_model_has_no_finding_about_its_wiring(kind):
    """R22, R32, R50, R56: parts that no module call shows, shared parts and helpers are not called dead or unused."""
    model = build(kind)
    optimizer = sgd(model, lr=0.01)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(30))
    assert [str(f) for f in monitor.diagnose() if f.code.startswith("GM1")] == []


def facts_of(monitor: gm.Monitor) -> dict[str, dict]:
    return [event["facts"] for event in monitor.run.events if event["kind"] == "facts"][-1]["parameters"]


def test_a_frozen_backbone_is_frozen_and_nothing_else():
    """R15: frozen layers are reported as frozen, never as vanishing, dead or unused."""
    model = build("frozen backbone")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(30))
    facts = facts_of(monitor)
    assert [facts[name]["trainable"] for name in ("backbone.0.weight", "head.weight")] == [False, True]
    assert {finding.code for finding in monitor.diagnose()} <= {"GM104"}
    assert not [finding for finding in monitor.diagnose() if finding.severity != "info"]


def test_shared_layers_are_one_tensor_with_aliases():
    """R22: a module under two names is one tensor, both names shown."""
    model = build("reused")
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(3))
    facts = facts_of(monitor)
    assert facts["shared.weight"]["aliases"] == ["alias.weight"]
    assert len(facts) == 6


def test_both_originals_of_a_parametrization_lie_under_their_layer():
    """R56: weight_norm's originals are grouped under the layer that they belong to, with their own update ratio."""
    model = build("weight_norm")
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(4))
    names = monitor.run.matrix("norm")[1]
    assert "layer.parametrizations.weight.original0" in names
    row = monitor.latest.tensors["layer.parametrizations.weight.original1"]
    assert 0 < row.update_norm < row.weight_norm


@pytest.mark.parametrize("to_none", [True, False])
def test_first_steps_have_no_stale_or_missing_values(to_none):
    """R51: with zero_grad(set_to_none=False) as with True, the first records hold this step's gradients."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for x, y in batches(4):
            optimizer.zero_grad(set_to_none=to_none)
            F.cross_entropy(model(x), y).backward()
            expected = {name: float(p.grad.double().norm()) for name, p in model.named_parameters()}
            optimizer.step()
            frame = monitor.latest
            assert {name: row.norm for name, row in frame.tensors.items()} == pytest.approx(expected)
            assert all(row.status == "seen" for row in frame.tensors.values())
            assert not frame.stale_grads


def test_gradients_are_read_before_clip_and_zero():
    """R51: a late query returns the last record, not a second look at what clipping and zeroing left."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        x, y = batches(1)[0]
        (1e3 * F.cross_entropy(model(x), y)).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        optimizer.zero_grad()
        assert monitor.latest.grad_norm == pytest.approx(norm)
        assert monitor.latest.grad_norm_post == pytest.approx(0.1, rel=1e-4)


# -- functorch, double backward ---------------------------------------------------------------


@pytest.mark.parametrize("steps_before", [0, 5])
def test_per_sample_gradients_of_a_watched_model(steps_before):
    """R52: vmap, grad and functional_call over a watched model give what they give without us, and make no frame."""
    model = mlp()
    optimizer = sgd(model)
    x, y = batches(1)[0]

    def loss(parameters, one, label):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (one[None],)), label[None])

    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(steps_before))
        parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        watched = per_sample(parameters, x, y)
        jacobian = torch.func.jacrev(lambda one: model(one))(x[0])
        torch.func.jvp(model, (x,), (torch.ones_like(x),))
        torch.func.vmap(model, randomness="different")(x)
        assert monitor.run.steps.num_rows == steps_before
        train(model, optimizer, batches(2))
    unwatched = per_sample(parameters, x, y)
    assert all(torch.equal(watched[name], unwatched[name]) for name in watched)
    assert jacobian.shape == (4, 8)
    assert monitor.run.steps.num_rows == steps_before + 2
    for entry in [e["facts"] for e in monitor.run.events if e["kind"] == "facts"][-1]["inputs"]:
        assert all(isinstance(value, (int, float, str, list, type(None))) for value in entry.values())


def penalised(model, x, y):
    x = x.clone().requires_grad_()
    out = model(x)
    (inner,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.cross_entropy(out, y) + 0.1 * inner.square().sum()


def test_gradient_penalty():
    """R53: double backward for 30 steps: the inner autograd.grad is no training gradient; the weights stay the same."""

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    plain, watched = net(), net()
    losses, norms = train(plain, sgd(plain), batches(30), penalised)
    optimizer = sgd(watched)
    with gm.watch(watched, optimizer, strict=True) as monitor:
        train(watched, optimizer, batches(30), penalised)
    assert bit_identical(weights_of(plain), weights_of(watched))
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    assert set(monitor.run.series("micro_batches").tolist()) == {1}
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms


def test_backward_with_create_graph_is_one_step():
    """R53: `backward(create_graph=True)`, then a second backward through the gradients, is one step."""
    model = mlp()
    optimizer = sgd(model)
    x, y = batches(1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gm.watch(model, optimizer, strict=True) as monitor:
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward(create_graph=True)
                sum(p.grad.square().sum() for p in model.parameters()).backward()
                expected = torch.stack([p.grad.detach().double().norm() for p in model.parameters()]).norm()
                optimizer.step()
                assert monitor.latest.grad_norm == pytest.approx(float(expected))
    assert monitor.run.steps.num_rows == 3
