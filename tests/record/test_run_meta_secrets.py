"""What the command line of a run must not leave in its record."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import gradmedic as gm
from gradmedic.run_meta import without_secrets


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("webhook:https://hooks.example/T0/B0/key", "webhook:***"),
        ("--sink=webhook:https://hooks.example/key", "--sink=webhook:***"),
        ("webhook:$SLACK_URL", "webhook:$SLACK_URL"),
        ("mlflow:https://me:secret@host:5000", "mlflow:https://***@host:5000"),
        ("--my-webhook:plain", "--my-webhook:plain"),
        ("tensorboard:runs/a@b", "tensorboard:runs/a@b"),
        ("train.py", "train.py"),
    ],
)
def test_addresses_that_are_passwords_are_left_out(given, kept):
    assert without_secrets(given) == kept


def test_the_record_holds_no_secret_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["gradmedic", "run", "--sink", "webhook:https://hooks.example/key", "t.py"])
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, record=tmp_path / "run"):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    assert "hooks.example" not in "".join(path.read_text("utf-8", "replace") for path in (tmp_path / "run").iterdir())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"][3] == "webhook:***"
