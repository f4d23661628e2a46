"""What `watch` refuses: each message says what was expected, what came, and how to mend it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic import torch_hooks


def parts():
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


class Duck:
    """Steps like an optimizer, and is none of torch's."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data -= 0.1 * parameter.grad


class Wrapper(Duck):
    """Holds an optimizer of torch's, as mixed-precision wrappers do."""

    def __init__(self, inner):
        self.inner, self.param_groups = [inner], inner.param_groups

    def step(self):
        self.inner[0].step()


SETTINGS = [
    ({"rules": 5}, "rules: expected", "got 5"),
    ({"rules": [5]}, "rules: expected", "got 5"),
    ({"rules": "x"}, "rules: expected", "got 'x'"),
    ({"rules": ["GM999"]}, "codes or rule objects", "GM999"),
    ({"strict": "x"}, "strict: expected True or False", "got 'x'"),
    ({"every": 0}, "every: expected", "got 0"),
    ({"every": -1}, "every: expected", "got -1"),
    ({"every": True}, "every: expected", "got True"),
    ({"every": 1.5}, "every: expected", "got 1.5"),
    ({"modules_every": 0}, "modules_every: expected", "got 0"),
    ({"backend": "x"}, "backend: expected one of", "got 'x'"),
    ({"backend": []}, "backend: expected one of", "got []"),
    ({"budget": "x"}, "budget must be", "'x'"),
    ({"budget": -1}, "budget must be", "-1"),
]


@pytest.mark.parametrize(("given", "expected", "came"), SETTINGS, ids=[str(each[0]) for each in SETTINGS])
def test_a_setting_that_cannot_be_is_refused_and_leaves_nothing(given, expected, came, tmp_path):
    """R78: no hook and no folder is left behind."""
    model, optimizer = parts()
    with pytest.raises(gm.InputError) as caught:
        gm.watch(model, optimizer, record=tmp_path / "run", **given)
    assert expected in str(caught.value)
    assert came in str(caught.value)
    assert torch_hooks.attached() == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("named", [False, True])
def test_swapped_arguments_are_called_swapped(named):
    """R78: the two are told apart in either form."""
    model, optimizer = parts()
    with pytest.raises(gm.InputError, match=r"swapped.*gm\.watch\(model, optimizer\)"):
        gm.watch({"a": optimizer} if named else optimizer, model)


def test_a_model_in_the_optimizers_place_beside_a_model_is_not_called_swapped():
    """R78: two models are another mistake."""
    model, _ = parts()
    with pytest.raises(gm.InputError, match="got Linear for 'optimizer'"):
        gm.watch(model, nn.Linear(2, 2))


def test_no_model_is_said_to_be_none():
    """R78: None is not taken for a model without parameters."""
    with pytest.raises(gm.InputError, match="got None"):
        gm.watch(None, parts()[1])


@pytest.mark.parametrize("collect", [lambda one: [one, one], lambda one: {"a": one, "b": one}])
def test_an_optimizer_is_given_once(collect):
    """R78: twice the same would be two names for each step."""
    model, optimizer = parts()
    with pytest.raises(gm.InputError, match="expected each once, got the same SGD"):
        gm.watch(model, collect(optimizer))


def test_an_optimizer_that_torch_does_not_announce_is_refused_with_the_way_out():
    """R3: it would be watched without a single frame."""
    model, _ = parts()
    with pytest.raises(gm.InputError, match=r"got Duck.*monitor\.observe\(\)"):
        gm.watch(model, Duck(model.parameters()))


def test_the_way_out_works():
    """R3: observe() after each of its steps."""
    model, _ = parts()
    duck = Duck(model.parameters())
    with gm.watch(model, strict=True) as monitor:
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(2, 3)).pow(2).mean().backward()
            duck.step()
            monitor.observe()
    assert [frame.step for frame in monitor.run.frames()] == [0, 1, 2]


def test_a_wrapper_of_torchs_optimizer_is_watched():
    """R3: the steps of what it wraps are announced."""
    model, optimizer = parts()
    with gm.watch(model, Wrapper(optimizer), strict=True) as monitor:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert monitor.latest.grad_norm > 0
