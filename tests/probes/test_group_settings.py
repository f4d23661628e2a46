"""What is told of parameter groups: who is in which, and the settings that each has of its own."""

from __future__ import annotations

import torch
from torch import nn

import gradmedic as gm
from gradmedic.facts import Facts
from gradmedic.probes.membership import coarse


def _facts(make, steps: int = 1, each=lambda optimizer: None) -> list[dict]:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    optimizer = make(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.rand(4, 2)).sum().backward()
            optimizer.step()
            each(optimizer)
    return [event["facts"] for event in monitor.run.events if event["kind"] == "facts"]


def _no_decay(model, **more):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, **more)


def test_groups_are_told_with_what_differs_from_the_defaults_and_each_parameter_with_its_group():
    facts = _facts(_no_decay)[-1]
    (entry,) = facts["optimizers"].values()
    assert entry["defaults"]["weight_decay"] == 0.01
    assert entry["groups"] == [{"weight_decay": 0.1}, {"weight_decay": 0.0}]
    groups = {name: fact["group"] for name, fact in facts["parameters"].items()}
    assert groups == {"0.weight": 0, "0.bias": 1, "1.weight": 1, "1.bias": 1, "2.weight": 0, "2.bias": 1}


def test_one_group_like_the_defaults_adds_nothing_to_the_record():
    facts = _facts(lambda model: torch.optim.AdamW(model.parameters(), lr=0.1))[-1]
    (entry,) = facts["optimizers"].values()
    assert "groups" not in entry


def test_a_schedule_of_rates_and_betas_does_not_tell_the_facts_again():
    scheduler = []

    def make(model):
        optimizer = _no_decay(model)
        scheduler.append(torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=400))
        return optimizer

    told = _facts(make, steps=260, each=lambda optimizer: scheduler[-1].step())
    assert len(told) < 6  # those of the first steps


def test_a_weight_decay_that_is_set_later_is_told():
    def raise_decay(optimizer):
        optimizer.param_groups[0]["weight_decay"] = 50.0

    (entry,) = _facts(_no_decay, steps=60, each=raise_decay)[-1]["optimizers"].values()
    assert entry["groups"][0] == {"weight_decay": 50.0}


def test_settings_are_compared_by_powers_of_two():
    def groups(decay):
        return {"AdamW": {"class": "AdamW", "groups": [{"weight_decay": decay, "betas": [0.9, 0.95]}]}}

    assert coarse(groups(0.04)) == coarse(groups(0.041))
    assert coarse(groups(0.04)) != coarse(groups(0.4))
    assert coarse(groups(0.0)) != coarse(groups(0.4))


def test_facts_of_an_older_record_have_no_groups():
    facts = Facts.from_json({"parameters": {"a": {"name": "a", "optimizer": "SGD"}}})
    assert facts.parameters["a"].group is None
