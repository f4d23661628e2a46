"""Sphinx reads every page without a warning: links, headings, images, tables of contents, languages of code.

`make docs` does the same and writes the pages; leaving that out halves the time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy", "-d", str(target / "trees")]
    return subprocess.run([*command, str(source), str(target)], capture_output=True, text=True, timeout=250)


def test_there_is_no_warning(tmp_path):
    made = build(DOCS, tmp_path)
    assert made.stderr == ""
    assert made.returncode == 0, made.stdout


def test_a_broken_link_would_be_seen(tmp_path):
    """The check above is worth something: the same settings refuse a link that leads nowhere."""
    source = tmp_path / "docs"
    source.mkdir()
    settings = (DOCS / "conf.py").read_text("utf-8").replace("Path(__file__).parent\n", f"Path({str(DOCS)!r})\n")
    (source / "conf.py").write_text(settings, "utf-8")
    (source / "index.md").write_text("# A page\n\n[nowhere](missing.md) and [no heading](#missing)\n", "utf-8")
    made = build(source, tmp_path / "built")
    assert made.returncode != 0
    assert "missing.md" in made.stderr
    assert "'missing'" in made.stderr
