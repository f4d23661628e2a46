"""Every block of code in docs/clipping.md runs, and its tables name what there is."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.cli.transform_spec import parse_transform, public_names

PAGE = (Path(__file__).parents[2] / "docs" / "clipping.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(10, 4)
        self.encoder = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.tokens(x).mean(1)
        for layer in self.encoder:
            hidden = torch.tanh(layer(hidden))
        return self.head(hidden)


def test_every_block_runs():
    torch.manual_seed(0)
    model = Model()
    loader = [(torch.randint(10, (8, 5)), torch.randint(3, (8,))) for _ in range(25)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = {"gm": gm, "torch": torch, "model": model, "loader": loader, "optimizer": optimizer}
    names["criterion"] = nn.CrossEntropyLoss()
    assert len(BLOCKS) >= 9
    for block in BLOCKS:
        exec(compile(block, "docs/clipping.md", "exec"), names)
    assert names["decision"].scale.item() == pytest.approx(0.2, rel=1e-5)
    assert names["chosen"].method.startswith("norm(")
    assert names["total"] >= 0


def test_every_command_is_understood():
    commands = re.findall(r"^gradmedic run (.*)$", PAGE, re.M)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        assert parse_transform(words[words.index("--clip") + 1]) is not None


def test_the_tables_have_every_method_and_its_defaults():
    rows = dict(re.findall(r"^\| `([a-z_]+)\([^`]*\)` \|(.*)$", PAGE, re.M))
    composing = {"boost", "chain", "default", "dry_run", "layers", "warmup"}
    assert set(rows) | composing == set(public_names())
    checked = 0
    for name in set(rows) - composing:
        parameters = inspect.signature(public_names()[name]).parameters
        for key, value in re.findall(r"`(\w+)=([^`]+)`", _defaults(rows[name])):
            default = parameters[key].default
            if default is None:  # settled when the transform is made
                made = public_names()[name](50) if name == "percentile" else public_names()[name]()
                default = getattr(getattr(made, "threshold", made), key)
            assert default == ast.literal_eval(value), (name, key)
            checked += 1
    assert checked > 25


def _defaults(row):
    """The cell of a row in which all code is of the form `name=value`, or is a default without its name."""
    cells = [re.sub(r"`per=.*`, ", "", cell) if "unit" in cell else cell for cell in row.split(" | ")]
    return next((cell for cell in cells if re.match(r"\|? ?`(\"|\w+=)", cell)), "")
