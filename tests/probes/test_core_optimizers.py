"""Several optimizers, nested ones, ones that step inside backward, and tensors that several names or owners share."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from core_reference import batch, codes, events, frames, grad_norm, net, norm, watch
from torch import nn

import gradmedic as gm

pytestmark = pytest.mark.filterwarnings("error")

mse = nn.functional.mse_loss


def gan() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    g = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))
    return g, net(1)


@pytest.mark.parametrize("given", ["mapping", "found"])
def test_a_gan_has_each_networks_own_gradients(given):
    """R36: D's step shows D only; what D's pass left in G is not part of G's step, and no fault of anyone."""
    g, d = gan()
    optimizers = {"G": torch.optim.Adam(g.parameters(), 1e-3), "D": torch.optim.SGD(d.parameters(), 1e-3)}
    expected: dict[str, list[tuple[float, float]]] = {"G": [], "D": []}
    with watch({"G": g, "D": d}, optimizers if given == "mapping" else None) as monitor:
        for step in range(5):
            optimizers["D"].zero_grad()
            real, noise = batch(step)[0], batch(step + 100)[0][:, :3]
            loss = mse(d(real), torch.ones(8, 1)) + mse(d(g(noise)), torch.zeros(8, 1))  # not detached: G is polluted
            loss.backward()
            expected["D"].append((loss.item(), grad_norm(d)))
            optimizers["D"].step()
            optimizers["G"].zero_grad()
            loss = mse(d(g(noise)), torch.ones(8, 1))
            loss.backward()
            expected["G"].append((loss.item(), grad_norm(g)))
            optimizers["G"].step()
        found = frames(monitor)
        assert "GM107" not in codes(monitor)
    assert [frame.step for frame in found] == [step for step in range(5) for _ in range(2)]
    for name, part in (("D", found[0::2]), ("G", found[1::2])):
        assert len({frame.optimizer for frame in part}) == 1
        assert [(f.loss, f.grad_norm) for f in part] == [pytest.approx(pair, rel=1e-5) for pair in expected[name]]
        assert {key.split(".")[0] for frame in part for key in frame.tensors} == {name}
        assert [frame.micro_batches for frame in part] == [1] * 5


def test_one_network_of_a_gan_can_be_clipped():
    """R36: a transform on a monitor of D alone leaves G's training as it was."""
    weights = []
    for clip in (None, gm.clip.norm(0.05)):
        g, d = gan()
        opt_g, opt_d = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.0)
        with watch(d, opt_d, transform=clip) as monitor:
            for step in range(3):
                opt_d.zero_grad()
                mse(d(batch(step)[0]), torch.ones(8, 1)).backward()
                opt_d.step()
                if clip is not None:
                    assert monitor.latest.grad_norm_post == pytest.approx(min(monitor.latest.grad_norm, 0.05), rel=1e-4)
                opt_g.zero_grad()
                mse(d(g(batch(step)[0][:, :3])), torch.ones(8, 1)).backward()
                opt_g.step()
            assert {frame.optimizer for frame in frames(monitor)} == {"optimizer"}
        weights.append([p.detach().clone() for p in g.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_optimizers_that_share_a_backward_pass_share_its_loss():
    """Two optimizers on two parts of one model: the same loss, a norm each, a step index each."""
    model = net()
    optimizers = [torch.optim.AdamW(model[0].parameters(), 0.01), torch.optim.SGD(model[2].parameters(), 0.01)]
    with watch(model, optimizers) as monitor:
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = mse(model(batch(step)[0]), batch(step)[1])
            loss.backward()
            sizes = [grad_norm(model[0]), grad_norm(model[2])]
            for optimizer in optimizers:
                optimizer.step()
            pair = frames(monitor)[-2:]
            assert [frame.step for frame in pair] == [step, step]
            assert [frame.optimizer for frame in pair] == ["0", "1"]
            assert [frame.loss for frame in pair] == pytest.approx([loss.item()] * 2, rel=1e-6)
            assert [frame.grad_norm for frame in pair] == pytest.approx(sizes, rel=1e-6)
            assert [frame.micro_batches for frame in pair] == [1, 1]


def test_an_optimizer_that_steps_twice_on_one_backward_pass_has_its_loss_once():
    """The second step has seen no backward pass: no loss, no micro-batch, and gradients used before."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        optimizer.step()
        optimizer.step()
        first, second = frames(monitor)
    assert (first.loss is None, first.micro_batches) == (False, 1)
    assert (second.loss, second.micro_batches) == (None, 0)
    assert second.grad_norm == first.grad_norm


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: climb, evaluate again, and let the base optimizer step from where it began."""

    def __init__(self, params: Any, base: type[torch.optim.Optimizer], rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        size = torch.stack([p.grad.norm() for p in held]).norm() + 1e-12
        for p in held:
            self.state[p]["before"] = p.detach().clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / size))
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["before"])
        self.base.step()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


@pytest.mark.parametrize("given", ["SAM", "its base", "found"])
@pytest.mark.parametrize("style", ["closure", "two calls"])
def test_sam_makes_one_frame_a_step(given, style):
    """With nested optimizers the outermost step counts; the norms are those at the point that the base steps with."""
    model = net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    sizes = []

    def evaluate(step: int) -> torch.Tensor:
        loss = mse(model(batch(step)[0]), batch(step)[1])
        loss.backward()
        sizes.append(grad_norm(model))
        return loss

    chosen = {"SAM": optimizer, "its base": optimizer.base, "found": None}[given]
    with watch(model, chosen) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            evaluate(step)
            if style == "closure":
                optimizer.step(lambda step=step: evaluate(step))
            else:
                optimizer.climb()
                evaluate(step)
                optimizer.descend()
        found = frames(monitor)
    assert [frame.step for frame in found] == [0, 1, 2, 3]
    assert [frame.grad_norm for frame in found] == pytest.approx(sizes[1::2], rel=1e-5)
    assert not any(frame.stale_grads for frame in found)
    assert {frame.optimizer for frame in found} == {"optimizer"}


def step_in_backward(model: nn.Module, clear: bool = True) -> list[torch.optim.Optimizer]:
    optimizers = {p: torch.optim.SGD([p], 0.01) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        if clear:
            optimizers[p].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


@pytest.mark.parametrize("given", ["the list", "found"])
def test_optimizers_inside_backward_make_one_frame_a_pass(given):
    """R44: joined into one frame, stated in the facts; the norm is that of all gradients, never a silent 0."""
    model, twin = net(), net()
    expected = []
    ordinary = torch.optim.SGD(twin.parameters(), 0.01)
    for step in range(4):
        ordinary.zero_grad()
        loss = mse(twin(batch(step)[0]), batch(step)[1])
        loss.backward()
        expected.append((loss.item(), grad_norm(twin)))
        ordinary.step()
    optimizers = step_in_backward(model)
    with watch(model, optimizers if given == "the list" else None) as monitor:
        for step in range(4):
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            frame = monitor.latest
            assert (frame.optimizer, frame.step) == ("in_backward", step)
            assert (frame.loss, frame.grad_norm) == pytest.approx(expected[step], rel=1e-5)
            assert set(frame.tensors) == {name for name, _ in model.named_parameters()}
        assert len(frames(monitor)) == 4
        facts = events(monitor, "facts")[-1]["facts"]
        assert facts["optimizer_in_backward"] is True


def test_a_global_clip_of_gradients_that_are_consumed_already_is_no_silent_zero():
    """R44: a clip after such a backward pass finds no gradients; the frame has the norm that was there."""
    model = net()
    step_in_backward(model)
    with watch(model) as monitor:
        for step in range(3):
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            assert monitor.latest.grad_norm > 0
            assert not monitor.latest.clipped
        found = [finding for finding in monitor.diagnose() if finding.code == "GM108"]
    assert found, "the clip has no effect, which must be said"


def test_clipping_each_parameter_inside_backward_works():
    """R44: with a transform every parameter's own step is clipped; a global clip is impossible there."""
    model, twin = net(), net()
    step_in_backward(model)
    loss = mse(twin(batch(0)[0]), batch(0)[1])
    loss.backward()
    expected = {name: min(p.grad.norm().item(), 0.05) for name, p in twin.named_parameters()}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with watch(model, transform=gm.clip.norm(0.05, per="tensor")) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
    moved = {name: ((before[name] - p.detach()).norm() / 0.01).item() for name, p in model.named_parameters()}
    assert moved == pytest.approx(expected, rel=1e-3)
    rows = monitor.latest.tensors
    assert {name: row.norm * row.clip_scale for name, row in rows.items()} == pytest.approx(expected, rel=1e-4)


class Tied(nn.Module):
    """Embedding and head share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.embed(x))))


def tied_loss(model: Tied, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(step)
    x, y = (torch.randint(0, 7, (6,), generator=draw) for _ in range(2))
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("listed", ["once", "twice"])
@pytest.mark.parametrize("clip", [None, torch.nn.utils.clip_grad_norm_, gm.clip_grad_norm_])
def test_a_tied_weight_counts_once(listed, clip):
    """R23: one row with its aliases, and a norm over unique tensors, also where a list has it twice."""
    torch.manual_seed(0)
    model = Tied()
    parameters = list(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of duplicates
        optimizer = torch.optim.SGD(parameters + ([model.head.weight] if listed == "twice" else []), 0.01)
    with watch(model, optimizer) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            tied_loss(model, step).backward()
            expected = norm(p.grad for p in parameters)
            if clip is not None:
                clip(parameters, 0.1)
            optimizer.step()
            frame = monitor.latest
            assert frame.grad_norm == pytest.approx(expected, rel=1e-5)
            assert frame.grad_norm_post == pytest.approx(expected if clip is None else 0.1, rel=1e-4)
            assert list(frame.tensors) == ["embed.weight", "body.weight", "body.bias"]
        facts = events(monitor, "facts")[-1]["facts"]["parameters"]
    assert list(facts["embed.weight"]["aliases"]) == ["head.weight"]
    assert "head.weight" not in facts


def test_a_tied_weight_in_two_optimizers_is_in_both_frames_once():
    """R23: both own it; each frame's norm is over its own unique tensors."""
    torch.manual_seed(0)
    model = Tied()
    one = torch.optim.SGD([model.embed.weight], 0.01)
    two = torch.optim.SGD([model.head.weight, model.body.weight, model.body.bias], 0.01)
    with watch(model, {"one": one, "two": two}) as monitor:
        tied_loss(model, 0).backward()
        expected = {"one": norm([model.embed.weight.grad]), "two": norm(p.grad for p in model.parameters())}
        for optimizer in (one, two):
            optimizer.step()
        found = {frame.optimizer: frame for frame in frames(monitor)}
    assert {name: frame.grad_norm for name, frame in found.items()} == pytest.approx(expected, rel=1e-5)
    assert set(found["two"].tensors) == {"embed.weight", "body.weight", "body.bias"}


def test_an_optimizer_of_another_model_is_none_of_ours():
    """R36: it makes no frame, and its backward passes are no part of the next loss."""
    model, other = net(0), net(1)
    optimizer, foreign = (torch.optim.SGD(m.parameters(), 0.01) for m in (model, other))
    with watch(model) as monitor:
        for step in range(3):
            mse(other(batch(step)[0]), batch(step)[1]).backward()
            foreign.step()
            foreign.zero_grad()
            optimizer.zero_grad()
            loss = mse(model(batch(step)[0]), batch(step)[1])
            loss.backward()
            optimizer.step()
            assert monitor.latest.loss == pytest.approx(loss.item(), rel=1e-6)
        assert [frame.step for frame in frames(monitor)] == [0, 1, 2]
        assert len(monitor.run.optimizers) == 1


def test_layers_of_one_shape_that_were_replaced_are_named_once_each():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[0], model[2] = nn.Linear(4, 4), nn.Linear(4, 4)
    with gm.watch(model, optimizer) as monitor:
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    [found] = [each for each in monitor.diagnose() if each.code == "GM105"]
    assert found.where == ("0.weight", "0.bias", "2.weight", "2.bias")
