"""Every fault of `gm.testing` is named by `gm.watch`, its healthy twin is left in peace, and both repeat by seed."""

from __future__ import annotations

import inspect

import pytest
import torch

import gradmedic as gm
from gradmedic.diagnosis import wording
from gradmedic.errors import InputError
from gradmedic.testing import MODELS, Fault, faults

#: Findings that tell the reader to do something.
ALARMS = ("warning", "error", "critical")


def watched(case, steps=None):
    with gm.watch(case.model, case.optimizer, strict=True) as monitor:
        losses = case.train(steps)
    return monitor.diagnose(), losses


def weights(case):
    models = case.model.values() if isinstance(case.model, dict) else [case.model]
    return [value.clone() for model in models for value in model.state_dict().values()]


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch warns of the broadcast, too
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: f"{fault.model}-{fault.name}")
def test_each_fault_is_named_first(fault):
    case = MODELS[fault.model](fault.name)
    assert case.fault == fault
    found, _ = watched(case)
    alarms = [finding for finding in found if finding.severity in ALARMS]
    assert [finding.code for finding in alarms[:1]] == [case.code]


@pytest.mark.parametrize("name", MODELS)
def test_healthy_trainings_learn_and_are_left_in_peace(name):
    case = MODELS[name]()
    assert case.fault is None
    assert case.code is None
    found, losses = watched(case)
    assert [str(finding) for finding in found if finding.severity in ALARMS] == []
    if name == "gan":  # no loss of a game falls: what is made has to lie on the ring
        made = case.model["G"](torch.randn(500, 8, generator=torch.Generator().manual_seed(1))).detach()
        assert 0.6 < float(made.norm(dim=1).mean()) < 1.4
    else:
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_makes_it_repeatable_and_leaves_random_numbers_alone(name):
    before = torch.get_rng_state()
    one, same, other = (MODELS[name](seed=seed) for seed in (3, 3, 4))
    losses = [case.train(4) for case in (one, same, other)]
    assert torch.equal(torch.get_rng_state(), before)
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(same), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_faults_are_listed_with_codes_that_exist(name):
    listed = faults(name)
    assert listed
    assert all(isinstance(fault, Fault) and fault.model == name for fault in listed)
    assert {fault.code for fault in listed} <= set(wording.codes())
    assert all(fault.says and fault.says[-1] != "." for fault in listed)
    assert len({fault.name for fault in listed}) == len(listed)
    assert MODELS[name] is getattr(gm.testing, name)
    assert "Raises" in (inspect.getdoc(MODELS[name]) or "") or name == "lstm"


def test_an_unknown_fault_is_refused_with_what_there_is():
    with pytest.raises(InputError, match=r"mlp has .*no_zero_grad.* did you mean 'no_zero_grad'"):
        gm.testing.mlp("zero_grad")


@pytest.mark.parametrize("side", [8, 32])
def test_resnet18_is_what_its_name_says(side):
    case = gm.testing.resnet18(side=side, width=4)
    convolutions = [m for m in case.model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == 18  # and the last layer; the shortcuts' do not count
    assert case.model(torch.zeros(2, 3, side, side)).shape == (2, 10)


def test_the_language_model_sees_the_past_only():
    causal, leaking = (gm.testing.transformer(fault).model for fault in (None, "no_mask"))
    ids = torch.zeros(1, 6, dtype=torch.long)
    changed = ids.clone()
    changed[0, 5] = 3
    with torch.no_grad():
        assert torch.equal(causal(ids)[..., :5], causal(changed)[..., :5])
        assert not torch.equal(leaking(ids)[..., :5], leaking(changed)[..., :5])


def test_initialisation_of_the_teaching_models_is_not_far_off():
    """What trains well is within 4 times of what `gm.init` would choose."""
    for name in ("mlp", "resnet18", "rnn"):
        case = MODELS[name]()
        assert [each.name for each in gm.init.suggest(case.model).off] == []
    dead = gm.init.suggest(gm.testing.mlp("dead_units").model)
    assert [each.name for each in dead.off] == ["2.bias"]
