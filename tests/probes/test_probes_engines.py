"""R47: gradients that an engine keeps to itself are not visible, which is neither zero nor unused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.probes import engines

STEPS = 25


class DeepSpeedEngine(nn.Module):
    """A stand-in that has DeepSpeed's ways: gradients are taken away in `backward`, and `step` is its own."""

    def __init__(self, module: nn.Module, accumulate: int = 1) -> None:
        super().__init__()
        self.module = module
        self.global_steps = 0
        self._accumulate, self._micro = accumulate, 0
        self._kept: dict[int, torch.Tensor] = {}
        self._norm = None

    def forward(self, inputs):
        return self.module(inputs)

    def backward(self, loss):
        loss.backward()
        for at, parameter in enumerate(self.module.parameters()):
            self._kept[at] = self._kept.get(at, 0) + parameter.grad
            parameter.grad = None

    def step(self):
        self._micro += 1
        if self._micro % self._accumulate:
            return
        self._norm = float(torch.stack([g.norm() for g in self._kept.values()]).norm())
        with torch.no_grad():
            for at, parameter in enumerate(self.module.parameters()):
                parameter -= 0.01 * self._kept[at]
        self._kept.clear()
        self.global_steps += 1

    def get_global_grad_norm(self):
        return self._norm


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train(engine: DeepSpeedEngine, monitor, calls: int) -> list[tuple[float | None, float | None]]:
    seen = []
    for step in range(calls):
        torch.manual_seed(step)
        engine.backward(engine(torch.randn(8, 4)).square().mean())
        before = engine.global_steps
        engine.step()
        if engine.global_steps > before:
            seen.append((monitor.latest.grad_norm, engine.get_global_grad_norm()))
    return seen


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_engine_is_asked_for_the_norm_and_nothing_is_called_unused(tmp_path, accumulate):
    engine = DeepSpeedEngine(build(), accumulate)
    with gm.watch(engine, record=tmp_path / "run", strict=True) as monitor:
        seen = train(engine, monitor, STEPS * accumulate)
        table = monitor.latest.tensors
        assert {table[name].status for name in table.names} == {"not_visible"}
    assert len(seen) == STEPS
    assert all(one == other for one, other in seen)
    run = gm.open_run(tmp_path / "run")
    assert len(run.series("grad_norm")) == STEPS
    found = {(each.code, each.variant) for each in gm.diagnose(run)}
    assert ("GM101", "not_visible") in found
    assert not {code for code, _ in found} & {"GM102", "GM301", "GM302", "GM103", "GM104"}
    assert [variant for code, variant in found if code == "GM101"] == ["not_visible"]


def test_nothing_is_left_on_the_engine():
    original = DeepSpeedEngine.__dict__["step"]
    engine = DeepSpeedEngine(build())
    monitor = gm.watch(engine, strict=True)
    assert DeepSpeedEngine.__dict__["step"] is not original
    copy.deepcopy(engine)
    pickle.dumps(engine)
    with monitor.paused():
        assert DeepSpeedEngine.__dict__["step"] is original
    monitor.close()
    assert DeepSpeedEngine.__dict__["step"] is original
    assert "step" not in vars(engine)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_patch_goes_with_the_last_of_several_whatever_the_order(order):
    original = DeepSpeedEngine.__dict__["step"]
    trained = [DeepSpeedEngine(build()) for _ in range(2)]
    monitors = [gm.watch(engine, strict=True) for engine in trained]
    for engine, monitor in zip(trained, monitors, strict=True):
        train(engine, monitor, 3)
    assert [monitor.latest.step for monitor in monitors] == [2, 2]
    first, last = order
    monitors[first].close()
    assert DeepSpeedEngine.__dict__["step"] is not original
    train(trained[last], monitors[last], 1)
    assert monitors[last].latest.step == 3
    monitors[last].close()
    assert DeepSpeedEngine.__dict__["step"] is original
    assert not engines._patches


def test_a_patch_of_another_over_ours_stays_and_hears_of_nothing(monkeypatch):
    original = DeepSpeedEngine.__dict__["step"]
    monitor = gm.watch(DeepSpeedEngine(build()), strict=True)
    ours = DeepSpeedEngine.__dict__["step"]
    monkeypatch.setattr(DeepSpeedEngine, "step", lambda self: ours(self))
    theirs = DeepSpeedEngine.__dict__["step"]
    monitor.close()
    assert DeepSpeedEngine.__dict__["step"] is theirs
    engine = DeepSpeedEngine(build())
    with gm.watch(engine, strict=True) as monitor:
        train(engine, monitor, 2)
        assert monitor.latest.step == 1
    assert DeepSpeedEngine.__dict__["step"] is theirs
    monkeypatch.undo()
    DeepSpeedEngine.step = original


@pytest.mark.parametrize(("attribute", "keeper"), [("main_grad", "Megatron"), ("ds_id", "DeepSpeed")])
def test_gradients_that_were_added_up_elsewhere_are_not_visible(tmp_path, attribute, keeper):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        setattr(parameter, attribute, torch.zeros_like(parameter))
    with gm.watch(model, optimizer, record=tmp_path / "run", strict=True) as monitor:
        for _ in range(STEPS):
            model(torch.randn(2, 4)).square().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None
            optimizer.step()
        assert monitor.latest.tensors["0.weight"].status == "not_visible"
        assert monitor.latest.grad_norm is None
    (found,) = gm.diagnose(gm.open_run(tmp_path / "run"))
    assert (found.code, found.variant, found.params["engine"]) == ("GM101", "not_visible", keeper)


def test_a_gradient_that_is_there_is_seen_whoever_else_has_one():
    parameter = nn.Parameter(torch.ones(2))
    parameter.main_grad = torch.zeros(2)
    assert engines.keeper_of(parameter) == "Megatron"
    parameter.grad = torch.ones(2)
    assert engines.keeper_of(parameter) is None
