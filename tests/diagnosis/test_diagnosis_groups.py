"""Rules ask the settings of the parameter group that a tensor is in, not those of the optimizer's constructor."""

from __future__ import annotations

import pytest
import torch
from diagnosis_frames import Recorder, digits, train
from torch import nn

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.finding import rank_of


def net(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.LayerNorm(64)] if norm else []
    return nn.Sequential(nn.Linear(64, 64), *middle, nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def found(run) -> dict:
    return {finding.code: finding for finding in diagnose(run)}


def split(model: nn.Module, matrices: dict, others: dict) -> list[dict]:
    return [
        {"params": [p for p in model.parameters() if p.ndim == 2], **matrices},
        {"params": [p for p in model.parameters() if p.ndim < 2], **others},
    ]


def test_groups_without_decay_are_not_blamed_for_the_default_decay():
    model = net()
    optimizer = torch.optim.AdamW(split(model, {"weight_decay": 0.0}, {"weight_decay": 0.0}), lr=5.0)
    codes = found(train(model, optimizer, digits(), 120))
    assert "GM401" in codes
    assert "GM407" not in codes


def test_the_decay_of_a_group_is_found_where_the_default_is_zero():
    model = net()
    optimizer = torch.optim.AdamW(split(model, {"weight_decay": 100.0}, {}), lr=1e-3, weight_decay=0.0)
    codes = found(train(model, optimizer, digits(), 120))
    finding = codes["GM407"]
    assert set(finding.where) == {"0.weight", "2.weight", "4.weight"}
    assert {each.name: each.value for each in finding.evidence}["weight decay"] == 100.0
    assert "100" in finding.message


def test_the_decay_of_a_group_of_one_matrix_is_found():
    model = net()
    groups = [{"params": model[:4].parameters()}, {"params": model[4].parameters(), "weight_decay": 100.0}]
    codes = found(train(model, torch.optim.AdamW(groups, lr=1e-3), digits(), 60))
    assert codes["GM407"].where == ("4.weight",)


def test_a_rate_of_its_own_makes_an_ordinary_decay_forget():
    model = net()
    groups = [{"params": model[:4].parameters()}, {"params": model[4].parameters(), "lr": 1e-3, "weight_decay": 80.0}]
    finding = found(train(model, torch.optim.AdamW(groups, lr=1e-4), digits(), 60))["GM407"]
    assert {each.name: each.value for each in finding.evidence}["learning rate"] == 1e-3


def test_biases_and_norms_without_decay_are_no_fault():
    model = net(norm=True)
    optimizer = torch.optim.AdamW(split(model, {"weight_decay": 0.01}, {"weight_decay": 0.0}), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=150)
    assert not found(train(model, optimizer, digits(), 150, scheduler=scheduler))


def test_the_epsilon_of_a_group_is_found():
    model = net()
    optimizer = torch.optim.Adam([{"params": model.parameters(), "eps": 100.0}], lr=1e-3)
    run = train(model, optimizer, digits(), 120)
    codes = found(run)
    assert codes["GM206"].params["eps"] == 100.0
    assert "GM402" not in codes  # folded: it follows


def test_an_epsilon_that_groups_have_lowered_is_not_blamed():
    model = net()
    optimizer = torch.optim.Adam([{"params": model.parameters(), "eps": 1e-8}], lr=1e-3, eps=100.0)
    assert not found(train(model, optimizer, digits(), 120))


def test_a_record_without_groups_is_judged_by_the_defaults():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)
    run = train(model, optimizer, digits(), 60)
    for event in run.events:
        for entry in event["facts"]["optimizers"].values():
            del entry["groups"]
        for fact in event["facts"]["parameters"].values():
            del fact["group"]
    assert "GM407" in found(run)


def test_an_ordinary_decay_multiplied_by_a_rate_far_too_high_follows_from_the_rate():
    model = net()
    listed = diagnose(train(model, torch.optim.AdamW(model.parameters(), lr=5.0), digits(), 120))
    assert listed[0].code == "GM401"
    assert "GM407" in {each.code for each in listed[0].folded}


def test_a_decay_out_of_order_is_the_root_of_large_steps():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)
    listed = diagnose(train(model, optimizer, digits(), 160))
    assert listed[0].code == "GM407"
    assert "GM401" not in {each.code for each in listed}


def test_a_finished_run_that_is_harmed_is_not_called_too_young_to_judge():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)
    (finding,) = (each for each in diagnose(train(model, optimizer, digits(), 160)) if each.code == "GM407")
    assert "too early" not in finding.message
    assert "does not fall" in finding.message


def rated(model: nn.Module, first: float, last: float, kind=torch.optim.Adam) -> torch.optim.Optimizer:
    groups = [{"params": model[:4].parameters(), "lr": first}, {"params": model[4].parameters(), "lr": last}]
    return kind(groups, lr=1e-3)


def test_the_group_whose_rate_is_far_too_high_is_named_with_its_rate():
    model = net()
    finding = found(train(model, rated(model, 1e-3, 50.0), digits(), 120))["GM401"]
    assert set(finding.where) == {"4.weight", "4.bias"}
    assert {each.name: each.value for each in finding.evidence}["learning rate"] == 50.0
    assert "at a learning rate of 50" in finding.message
    assert "that group" in finding.remedies[0].text


def test_a_head_with_a_rate_ten_times_higher_is_no_fault():
    model = net()
    assert not found(train(model, rated(model, 2e-4, 2e-3), digits(), 150))


def test_a_group_with_rate_zero_in_which_gradients_flow_is_found():
    model = net()
    finding = found(train(model, rated(model, 0.0, 1e-3), digits(), 150))["GM111"]
    assert (finding.variant, set(finding.where)) == ("group", {"0.weight", "0.bias", "2.weight", "2.bias"})
    assert rank_of(finding.severity) <= rank_of("warning")


def test_a_group_with_rate_zero_is_not_said_to_stand_still_for_another_reason():
    model = net()
    run = train(model, rated(model, 1e-3, 0.0), digits(), 150)
    assert set(found(run)) == {"GM111"}
    assert found(run)["GM111"].severity == "info"


def test_frozen_tensors_in_a_group_with_rate_zero_are_quiet():
    model = net()
    for p in model[:4].parameters():
        p.requires_grad_(False)
    assert "GM111" not in found(train(model, rated(model, 0.0, 1e-3), digits(), 60))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (lambda step: min(1.0, step / 30), lambda step: min(1.0, step / 30)),  # a warm-up from zero
        (lambda step: max(0.0, 1 - step / 100), lambda step: 1.0),  # one group decays to zero
        (lambda step: min(1.0, step / 15), lambda step: 1.0),
        (lambda step: float(step >= 40), lambda step: 1.0),  # let go later: taken back
    ],
)
def test_schedules_that_begin_or_end_at_zero_are_quiet(first, last):
    model = net()
    optimizer = rated(model, 1e-3, 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [first, last])
    assert "GM111" not in found(train(model, optimizer, digits(), 150, scheduler=scheduler))


def test_a_group_added_later_does_not_make_one_that_has_had_its_rate_look_idle():
    model = net()
    made = [torch.optim.Adam(model[:2].parameters(), lr=1e-3)]
    recorder = Recorder(model, made[0])
    draw = digits()
    for step in range(120):
        if step == 50:
            made[0].param_groups[0]["lr"] = 0.0
            made[0].add_param_group({"params": list(model[2:].parameters()), "lr": 1e-3})
            recorder.refresh_facts()
        x, y = draw(step)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        recorder.step(loss)
    assert "GM111" not in found(recorder.run)
