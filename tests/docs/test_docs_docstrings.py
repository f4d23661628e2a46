"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import gradmedic as gm

SOURCE = Path(gm.__file__).parents[1]
#: Rooms and modules whose examples run in tests of their own, since they need a run: tests/plot, tests/clip.
ELSEWHERE = {"plot", "gradmedic.clip.advice"}
#: What an example may take for granted.
GIVEN = {"gm": gm, "torch": torch, "gradient_stats": gm.stats.gradient_stats}


def rooms() -> dict[str, list[str]]:
    """Return room -> modules whose text has an example."""
    found: dict[str, list[str]] = {}
    for file in sorted(SOURCE.joinpath("gradmedic").rglob("*.py")):
        if ">>> " in file.read_text("utf-8"):
            name = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
            room = name.split(".")[1] if file.parent.parent != SOURCE else "gradmedic"
            if not {name, room} & ELSEWHERE:
                found.setdefault(room, []).append(name)
    return found


@pytest.mark.parametrize("room", sorted(rooms()))
def test_examples(room, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    failed: list[str] = []
    tried = 0
    for name in rooms()[room]:
        module = importlib.import_module(name)
        given = {key: value for key, value in GIVEN.items() if not hasattr(module, key)}
        result = doctest.testmod(
            module, extraglobs=given, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
        )
        tried += result.attempted
        failed += [name] if result.failed else []
    assert not failed, capsys.readouterr().out
    assert tried


def test_examples_are_many():
    assert sum(map(len, rooms().values())) > 90
