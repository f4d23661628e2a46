"""Local gradients in one process that takes itself for a rank: hooks that come and go, and faults of ours."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.probes import local_gradients
from gradmedic.probes.unsharded import added_before, gathered_weights, whole_weight


@pytest.fixture(autouse=True)
def rank(monkeypatch):
    monkeypatch.setattr(local_gradients, "several_ranks", lambda: True)


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    backward(model)
    optimizer.step()
    optimizer.zero_grad()


def hooked(model: nn.Module) -> int:
    return sum(bool(parameter._post_accumulate_grad_hooks) for parameter in model.parameters())


def test_hooks_are_there_for_sampled_steps_only():
    model, optimizer = training()
    sampled = []
    with gm.watch(model, optimizer, modules_every=50, every=2, strict=True) as monitor:
        for index in range(12):
            backward(model)
            assert hooked(model) in (0, 4)
            before = hooked(model)
            optimizer.step()
            optimizer.zero_grad()
            assert hooked(model) == 0
            assert ("local_norm" in monitor.latest.tensors.columns) == bool(before)
            if before:
                sampled.append(index)
    assert sampled == [0, 2, 4, 8]  # of steps without a table there is nowhere to put it


def test_hooks_are_gone_after_closing_and_pausing_in_the_middle_of_a_step():
    model, optimizer = training()
    monitor = gm.watch(model, optimizer, strict=True)
    backward(model)
    assert hooked(model) == 4
    with monitor.paused():
        assert hooked(model) == 0
    step(model, optimizer)
    backward(model)
    assert hooked(model) == 4
    monitor.close()
    assert hooked(model) == 0


def test_a_fault_of_ours_is_isolated_and_recorded(monkeypatch):
    def broken(*_args, **_kwargs):
        raise ValueError("ours")

    model, optimizer = training()
    twin, other = training()
    with gm.watch(model, optimizer) as monitor:
        monkeypatch.setattr(local_gradients, "gradient_stats", broken)
        for _ in range(3):
            step(model, optimizer)
            step(twin, other)
        errors = [event for event in monitor.run.events if event["kind"] == "error"]
    assert [event["part"] for event in errors] == ["local gradients"]
    assert hooked(model) == 0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_gradients_that_were_there_before_are_not_taken_for_local_ones():
    model, optimizer = training()
    with gm.watch(model, optimizer, strict=True) as monitor:
        backward(model)
        with torch.no_grad():  # what a reduction does
            model[0].weight.grad.mul_(0.5)
        step(model, optimizer)
        row = monitor.latest.tensors["0.weight"]
        assert row.local_norm != row.local_norm
        own = monitor.latest.tensors["1.weight"]
        assert own.local_norm == own.norm
        assert own.local_nonfinite == 0


def test_a_gradient_that_a_hook_of_the_users_own_has_used_up():
    model, optimizer = training()
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    with gm.watch(model, optimizer, strict=True) as monitor:
        step(model, optimizer)
        values = monitor.latest.tensors.columns["local_norm"]
    assert (values == values).tolist() == [False, True, True, True]


def test_other_names_in_another_torch_measure_nothing():
    class Divided(nn.Linear):
        def _get_fsdp_state(self):
            return self.state

    model = Divided(2, 1)
    for state in (None, SimpleNamespace(), SimpleNamespace(_fsdp_param_group=None, _fsdp_param_groups=None)):
        model.state = state
        assert gathered_weights([model]) == {}
    model.state = SimpleNamespace(_fsdp_param_groups=[SimpleNamespace(fsdp_params=[SimpleNamespace()])])
    assert gathered_weights([model]) == {}
    holder = SimpleNamespace(sharded_param=model.weight)
    model.state = SimpleNamespace(_fsdp_param_group=SimpleNamespace(fsdp_params=[holder]))
    assert gathered_weights([model]) == {id(model.weight): holder}
    assert whole_weight(holder) is None
    assert added_before(holder) is None
