"""The examples of docs/trainers.md."""

from __future__ import annotations

import re
from pathlib import Path

from plain_loops import run_block

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text("utf-8")


def example(library: str) -> str:
    """Return the first block of Python below the heading that begins with a library's name."""
    (section,) = re.findall(rf"^## {re.escape(library)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return re.search(r"^```python\n(.*?)^```", section, re.M | re.S).group(1)


def run_example(library: str, folder: Path, monkeypatch) -> dict:
    return run_block(example(library), folder, monkeypatch)
