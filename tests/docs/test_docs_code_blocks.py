"""The Python on the pages runs, page by page, in the order in which it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradmedic as gm

DOCS = Path(__file__).parents[2] / "docs"


class Network(nn.Module):
    """Names as the pages use them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def blocks(page: str, language: str = "python") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.M | re.S)
    return [text for named, text in found if named == language]


def names() -> dict:
    torch.manual_seed(0)
    model, transformer = Network(), Transformer()
    return {
        "gm": gm,
        "nn": nn,
        "np": np,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "batches": [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(12)],
        "criterion": lambda output, target: (
            nn.functional.cross_entropy(output, target) if target.dim() == 1 else (output - target).square().mean()
        ),
        "transformer": transformer,
        "adamw": torch.optim.AdamW(transformer.parameters()),
        "text": [(torch.randint(10, (4, 6)), torch.randint(3, (4,))) for _ in range(3)],
    }


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("quickstart.md", 4),
        ("zh/quickstart.md", 4),
        ("concepts.md", 2),
        ("clipping-guide.md", 3),
        ("migration.md", 1),
    ],
)
def test_blocks_run(page, least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert len(found) >= least
    held = names()
    if page == "migration.md":  # a gradient to clip
        held["model"](torch.ones(2, 4)).sum().backward()
    for block in found:
        exec(compile(block, page, "exec"), held)
    if page.endswith("quickstart.md"):  # what is treated is a model that can be
        assert all(weight.isfinite().all() for weight in held["model"].parameters())
        assert held["monitor"].run.series("skipped").sum() == 1


def test_examples_of_extending_do_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = names()
    for block in blocks("extending.md"):
        exec(compile(block, "extending.md", "exec"), held)
    tails = held["tails"]
    assert tails.shape == (12,)
    assert np.all(tails >= 1)  # Jensen: the mean of squares of squares is at least the square of their mean
    assert [step for _, step in held["slowest"].steps] != []
    assert len(held["slowest"].steps) == 3


def test_the_chinese_quick_start_has_the_same_code():
    def without_comments(page):
        return [re.sub(r"\s*#.*", "", block) for block in blocks(page)]

    assert without_comments("zh/quickstart.md") == without_comments("quickstart.md")
