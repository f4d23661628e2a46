"""How long a model has been in evaluation mode: exact, and only of models that are trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradmedic.probes.training_mode import ModeProbe


def raising(_part: str, error: Exception) -> None:
    raise error


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Dropout(0.0), nn.Linear(4, 1))


def rows(probe: ModeProbe, model: nn.Module, sampled: bool = False) -> list[Any]:
    return probe.before_backward([model(torch.randn(6, 4)).sum()], sampled=sampled)


def numbers(row: Any) -> dict[str, float]:
    return {key: float(value) for key, value in row.extra.items()}


def test_steps_in_evaluation_mode_are_counted_at_every_step() -> None:
    model = net()
    probe = ModeProbe(lambda: {"m": model}, raising)
    said = []
    for step in range(30):
        model.train(step < 7)
        if made := rows(probe, model):
            said.append((step, numbers(made[0])["eval_steps"], numbers(made[0])["train_steps"]))
        probe.end_step()
    assert said == [(9, 3, 7), (16, 10, 7)]


def test_what_a_row_says() -> None:
    model = net()
    probe = ModeProbe(lambda: {"m": model}, raising)
    [row] = rows(probe, model, sampled=True)
    assert numbers(row)["training"] == 1
    model.eval()
    first, *named = rows(probe, model, sampled=True)
    found = numbers(first)
    assert (found["norms"], found["norms_eval"], found["dropouts"], found["dropouts_eval"]) == (1, 1, 1, 1)
    assert found["virgin"] == 0  # a forward pass in training mode has written statistics
    assert [(row.module, row.leaf) for row in named] == [("m.1", "norm"), ("m.2", "dropout")]
    fresh = net().eval()
    probe = ModeProbe(lambda: {"": fresh}, raising)
    assert numbers(rows(probe, fresh, sampled=True)[0])["virgin"] == 1


def test_one_pass_in_training_mode_makes_a_step_of_training() -> None:
    """Adversarial examples are made in evaluation mode, within the step."""
    model = net()
    probe = ModeProbe(lambda: {"": model}, raising)
    for _ in range(20):
        model.eval()
        assert rows(probe, model) == []
        model.train()
        assert rows(probe, model) == []
        probe.end_step()


def test_steps_without_a_backward_pass_do_not_count() -> None:
    model = net().eval()
    probe = ModeProbe(lambda: {"": model}, raising)
    for _ in range(5):
        probe.end_step()
    assert numbers(rows(probe, model, sampled=True)[0])["eval_steps"] == 1


def test_models_that_the_loss_does_not_reach_are_left_out() -> None:
    student, teacher = net(), net().eval()
    probe = ModeProbe(lambda: {"student": student, "teacher": teacher}, raising)
    for _ in range(12):
        made = rows(probe, student, sampled=True)
        assert {row.module.partition(".")[0] for row in made} == {"student"}
        probe.end_step()


def test_models_are_held_weakly() -> None:
    models = {"": net()}
    probe = ModeProbe(lambda: models, raising)
    rows(probe, models[""])
    models.clear()
    assert len(probe._modes) == 0
