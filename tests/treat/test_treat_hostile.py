"""What hosts do in the middle of a treated step: raise, close, nest, hand in gradients that cannot be written to."""

from __future__ import annotations

import math

import pytest
import torch
from treat_reference import assert_same, batches, make_model, snapshot, spoiled, train

import gradmedic as gm


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_step_that_raises_binds_no_later_step(fused: bool, backend: str) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    good = batches(1)[0]
    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), backend=backend, strict=True):
        train(model, optimizer, [good, good])

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        hook = optimizer.register_step_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, [spoiled(good)])
        hook.remove()
        before = snapshot(model, optimizer)
        train(model, optimizer, [good])
        assert not torch.equal(before[0]["0.weight"], model.state_dict()["0.weight"])
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize("fused", [False, True])
def test_closing_inside_a_skipped_step_puts_everything_back(fused: bool) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    good = batches(1)[0]
    monitor = gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(), backend="torch", strict=True)
    train(model, optimizer, [good, good])
    hook = optimizer.register_step_pre_hook(lambda *_: monitor.close())
    train(model, optimizer, [spoiled(good)])
    hook.remove()
    assert not hasattr(optimizer, "found_inf")
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_two_guards_on_one_fused_optimizer() -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    outer = torch.nn.ModuleDict({"m": model})
    good = batches(1)[0]
    with (
        gm.watch(model, transform=gm.guard.skip_nonfinite(), backend="torch", strict=True) as first,
        gm.watch(outer, transform=gm.guard.skip_nonfinite(), backend="torch", strict=True),
    ):
        train(model, optimizer, [good, good])
        before = snapshot(model, optimizer)
        train(model, optimizer, [spoiled(good)])
        assert_same(before, snapshot(model, optimizer))
        train(model, optimizer, [good])
        assert first.latest is not None
        assert not first.latest.skipped
        assert not torch.equal(before[0]["0.weight"], model.state_dict()["0.weight"])
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_clipper_under_a_scaler_skips_and_leaves_the_scaler_in_order(fused: bool, backend: str) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    guard = gm.guard.skip_spikes(min_samples=3, window=8)
    clipper = gm.Clipper(model, guard, optimizer=optimizer, backend=backend)
    data = batches(8)
    data[5] = (data[5][0], data[5][1] * 1e4)
    for at, batch in enumerate(data):
        before = snapshot(model, optimizer)
        optimizer.zero_grad()
        scaler.scale(((model(batch[0]) - batch[1]) ** 2).mean()).backward()
        scaler.unscale_(optimizer)
        frame = clipper.step()
        scaler.step(optimizer)
        scaler.update()
        assert frame.skipped == (at == 5)
        if at == 5:
            assert_same(before, snapshot(model, optimizer))
        else:
            assert not torch.equal(before[0]["0.weight"], model.state_dict()["0.weight"])


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_expanded_and_inference_gradients_are_clipped_whole_or_not_at_all(backend: str) -> None:
    first, second = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(4))
    third = torch.nn.Parameter(torch.zeros(2))
    for transform in (gm.clip.norm(1.0), gm.clip.value(0.1), gm.clip.norm(1.0, per="unit")):
        first.grad = torch.full((3,), 5.0)
        second.grad = torch.full((1,), 10.0).expand(4)
        with torch.inference_mode():
            third.grad = torch.full((2,), 7.0)
        gm.Clipper([first, second, third], transform, backend=backend).step()
        joint = math.sqrt(sum(float(p.grad.double().square().sum()) for p in (first, second, third)))  # type: ignore[union-attr]
        assert joint <= 2.0


def test_meta_parameters_do_not_switch_a_transform_off() -> None:
    here = torch.nn.Linear(3, 2)
    nowhere = torch.nn.Linear(3, 2, device="meta")
    optimizer = torch.optim.SGD([*nowhere.parameters(), *here.parameters()], lr=0.0)
    models = {"here": here, "nowhere": nowhere}
    with gm.watch(models, optimizer, transform=gm.clip.norm(0.1), strict=True) as monitor:
        (here(torch.ones(4, 3)) * 100).sum().backward()
        nowhere(torch.ones(4, 3, device="meta")).sum().backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    assert frame.clipped
    assert float(torch.cat([p.grad.reshape(-1) for p in here.parameters()]).norm()) <= 0.1 * (1 + 1e-6)  # type: ignore[union-attr]


def test_flags_and_patients_do_not_pile_up() -> None:
    model = make_model()
    data = batches(1)
    with gm.watch(model, transform=gm.guard.default(), backend="torch", strict=True) as monitor:
        for _ in range(40):
            train(model, torch.optim.Adam(model.parameters(), lr=1e-4, fused=True), data * 2)
        treatment = monitor._watcher._treatment
        assert len(treatment._patients) <= 4
        assert len(treatment.uncredited) <= 16
        steps = monitor.run.steps
    made = list(zip(steps["optimizer"].to_pylist(), steps["step"].to_pylist(), strict=True))
    assert len(made) == len(set(made)) == 80


def test_a_state_of_another_transform_is_refused_before_it_is_needed() -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, transform=gm.clip.zclip(), strict=True) as monitor:
        train(model, optimizer, batches(2))
        saved = monitor.state_dict()
    with gm.watch(model, optimizer, transform=gm.guard.default(), strict=True) as monitor:
        with pytest.raises(gm.InputError, match="state of this transform"):
            monitor.load_state_dict(saved)
        with pytest.raises(gm.InputError, match="what Monitor"):
            monitor.load_state_dict({"version": 1, "optimizers": None})
    with pytest.raises(gm.InputError, match="what Clipper"):
        gm.Clipper(model, gm.clip.zclip()).load_state_dict(saved)


@pytest.mark.parametrize("loss", ["x", torch.ones(2), [1, 2, 3]])
def test_a_loss_that_is_no_number_is_refused(loss: object) -> None:
    model = make_model()
    with pytest.raises(gm.InputError, match="loss: expected a number"):
        gm.Clipper(model, 1.0).step(loss)  # type: ignore[arg-type]


def test_an_output_that_cannot_be_looked_through_does_not_reach_the_host() -> None:
    class Trap(dict):  # type: ignore[type-arg]
        def values(self):  # type: ignore[no-untyped-def]
            raise KeyError("trap")

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Trap:
            return Trap(out=self.map(x))

    layer = Layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with gm.watch(layer, optimizer, flow={"Layer": 1.0}):
        layer(torch.ones(1, 2))["out"].sum().backward()
        optimizer.step()
