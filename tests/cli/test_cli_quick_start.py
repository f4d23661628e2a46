"""The quick start's command prints what the page says that it prints."""

from __future__ import annotations

import re
from pathlib import Path

import gradmedic

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.M | re.S)
    return [text for named, text in found if named == language]


def shown(page: str) -> list[str]:
    """The lines about the finding, as the page has them."""
    lines = next(block for block in blocks(page, "") if "GM201" in block and "--record" in block).splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.startswith("GM201")) :]


def test_first_script_is_diagnosed_as_the_quick_start_shows(gm_fork, tmp_path):
    """What the page prints is what a user sees: the check-up's finding, word for word."""
    (tmp_path / "train.py").write_text(blocks("quickstart.md", "python")[0], "utf-8")
    made = gm_fork("run", "--lang", "en", "--record", "runs/first", "train.py", COLUMNS="100", PATH="")
    printed = [line.rstrip() for line in made.stderr.decode().splitlines()]
    wanted = shown("quickstart.md")
    assert made.returncode == 0
    assert made.stdout.count(b"loss nan") == 5
    assert printed[printed.index(wanted[0]) :][: len(wanted)] == wanted
    chinese = gradmedic.diagnose(gradmedic.open_run(tmp_path / "runs" / "first"), lang="zh")[0]
    said = "".join(shown("zh/quickstart.md"))
    assert chinese.title in said
    assert chinese.message in said
    assert chinese.remedies[0].text in said
