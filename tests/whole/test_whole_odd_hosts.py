"""Odd but legal hosts: none of them switches any part of the watching off, or notices it."""

import pytest
import torch
from torch import nn

import gradmedic as gm


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(16, 6)


def turn(model, optimizer, x):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


def test_a_group_without_parameters():
    model, optimizer, x = parts()
    with gm.watch(model, optimizer, strict=True) as monitor:
        optimizer.param_groups.append({**optimizer.param_groups[0], "params": []})
        turn(model, optimizer, x)
        assert monitor.latest.lrs == (0.1, 0.1)


def test_a_learning_rate_that_is_no_number():
    class Odd(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"]() * parameter.grad

    model, _, x = parts()
    optimizer = Odd(model.parameters(), {"lr": lambda: 0.1})
    with gm.watch(model, optimizer, strict=True) as monitor:
        turn(model, optimizer, x)
        assert monitor.latest.lr is None
        assert monitor.latest.grad_norm > 0


def test_a_weight_that_grows():
    model, optimizer, x = parts()
    with gm.watch(model, optimizer, strict=True) as monitor:
        turn(model, optimizer, x)
        model[2].weight.data = torch.randn(3, 5)
        model[2].bias.data = torch.randn(3)
        model[2].weight.grad = model[2].bias.grad = None
        turn(model, optimizer, x)
        turn(model, optimizer, x)
        assert monitor.latest.step == 2
        assert monitor.latest.tensors["2.weight"].numel == 15


def test_backward_on_something_that_is_no_tensor_is_torchs_affair():
    model, optimizer, x = parts()
    with gm.watch(model, optimizer, strict=True) as monitor:
        with pytest.raises((TypeError, AttributeError, RuntimeError, AssertionError)):
            torch.autograd.backward([1])
        turn(model, optimizer, x)
        assert monitor.latest.loss is not None


def test_a_model_without_values():
    model = nn.Linear(3, 1, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        turn(model, optimizer, torch.empty(2, 3, device="meta"))
        assert monitor.latest.loss is None
        assert monitor.latest.grad_norm is None
        assert monitor.latest.tensors["weight"].status == "not_visible"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sinks": [object()]}, "lacks emit, emit_finding, close"),
        ({"sinks": None}, "sinks: expected a list"),
        ({"on_finding": 3}, "on_finding: expected a function"),
        ({"transform": "norm"}, "transform: expected a transform"),
        ({"record": 3}, "record: expected the path"),
        ({"record": ""}, "record: expected the path"),
        ({"record": "a\0b"}, "record: expected the path"),
    ],
)
def test_what_cannot_work_is_refused_at_once(given, says):
    model, optimizer, _ = parts()
    with pytest.raises(gm.InputError, match=says):
        gm.watch(model, optimizer, **given)


def test_a_number_too_large_for_a_float_is_said_and_not_raised(capsys):
    model, optimizer, x = parts()
    with gm.watch(model, optimizer) as monitor:
        turn(model, optimizer, x)
        monitor.log(huge=10**400)
        turn(model, optimizer, x)
    assert "expected a number" in capsys.readouterr().err
    assert len(list(monitor.run.frames())) == 2
