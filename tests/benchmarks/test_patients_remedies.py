"""Remedies: which can be carried out, what they do to an optimizer, and what counts as help."""

import pytest
import torch
from benchmarks.patients.patient import Patient
from benchmarks.patients.remedies import VOCABULARY, applicable, change, recovery, table, trials

from gradmedic.diagnosis.actions import check_action


def line(id, actions, seed=0, severity="error", **values):
    said = [{"code": "GM401", "severity": severity, "actions": actions}] if actions is not None else []
    return {"id": id, "seed": seed, "script": "s.py", "findings": said, **values}


def test_the_vocabulary_is_that_of_the_findings():
    for action in VOCABULARY:
        check_action(action)
        assert applicable(action)


@pytest.mark.parametrize("action", [{"kind": "code", "hint": "shuffle"}, {"kind": "optimizer", "add": ["a"]}])
def test_what_asks_for_a_change_of_code_is_left_out(action):
    assert not applicable(action)


def test_only_the_first_remedy_of_the_first_alarm_is_tried_and_the_random_one_differs():
    patients = [Patient("F1", "s.py", ("GM401",), "development"), Patient("H1", "s.py", (), "development")]
    lines = [
        line("F1", [{"kind": "lr", "factor": 0.1}]),
        line("F1", [{"kind": "code", "hint": "sign"}, {"kind": "guard"}], seed=1),
        line("F1", [{"kind": "guard"}], seed=2, severity="info"),
        line("F1", None, seed=3),
        line("H1", [{"kind": "guard"}]),
    ]
    made = trials(lines, patients)
    assert [(each.which, each.seed) for each in made] == [("first", 0), ("random", 0)]
    assert made[0].action == {"kind": "lr", "factor": 0.1}
    assert made[1].action != made[0].action
    assert made == trials(lines, patients)


@pytest.mark.parametrize(
    ("action", "settings"),
    [
        ({"kind": "lr", "factor": 0.1}, {"lr": 0.01, "eps": 0.1, "betas": (0.9, 0.999), "weight_decay": 0.5}),
        ({"kind": "optimizer", "eps": 1e-8}, {"lr": 0.1, "eps": 1e-8, "betas": (0.9, 0.999), "weight_decay": 0.5}),
        ({"kind": "optimizer", "beta2": 0.95}, {"lr": 0.1, "eps": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.5}),
        ({"kind": "guard"}, {"lr": 0.1, "eps": 0.1, "betas": (0.9, 0.999), "weight_decay": 0.5}),
    ],
)
def test_settings_are_changed_in_place(action, settings):
    optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=0.1, eps=0.1, weight_decay=0.5)
    change(optimizer.param_groups[0], action)
    for key, value in settings.items():
        assert optimizer.param_groups[0][key] == pytest.approx(value)


@pytest.mark.parametrize(
    ("treated", "faulty", "twin", "higher", "expected"),
    [
        (0.9, [0.1], [0.9], True, 1.0),
        (0.5, [0.1], [0.9], True, 0.5),
        (0.5, [0.9], [0.1], False, 0.5),
        (None, [0.1], [0.9], True, 0.0),
        (float("nan"), [0.1], [0.9], True, 0.0),
        (0.85, [None], [0.9], True, 1.0),
        (0.5, [None], [0.9], True, 0.0),
        (1.05, [None], [1.0], False, 1.0),
        (0.5, [0.9], [0.9], True, None),
        (0.5, [0.1], [], True, None),
    ],
)
def test_recovery(treated, faulty, twin, higher, expected):
    assert recovery(treated, faulty, twin, higher) == (None if expected is None else pytest.approx(expected))


def test_the_table_counts_ours_beside_the_random_one():
    lines = [
        line("F1", None, metric=0.1, higher_is_better=True),
        line("twin:s.py", None, metric=0.9, higher_is_better=True),
    ]
    done = [
        {"id": "F1", "seed": 0, "script": "s.py", "code": "GM401", "which": "first", "metric": 0.9},
        {"id": "F1", "seed": 1, "script": "s.py", "code": "GM401", "which": "first", "metric": 0.3},
        {"id": "F1", "seed": 0, "script": "s.py", "code": "GM401", "which": "random", "metric": 0.1},
    ]
    assert table(done, lines)[2:] == [
        "| GM401 | 2 | 50% | 0.62 | 0% | 0.00 |",
        "| all | 2 | 50% | 0.62 | 0% | 0.00 |",
    ]
