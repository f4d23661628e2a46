"""Every link within the repository leads somewhere, every page is reached from the index, generated pages are fresh."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md"))]
)


def without_code(text: str) -> str:
    return re.sub(r"^(`{3,}).*?^\1|`[^`\n]*`", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S), re.M
    ):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        at = 0
        while (numbered := f"{slug}-{at}" if at else slug) in found:
            at += 1
        found.add(numbered)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name}: {target} has no such heading"


def test_every_page_is_in_a_table_of_contents():
    listed: set[Path] = set()
    for page in DOCS.rglob("*.md"):
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            lines = [line for line in tree.splitlines() if line and not line.startswith(":")]
            entries = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    pages = {page.resolve() for page in DOCS.rglob("*.md")}
    assert pages - listed == {(DOCS / "index.md").resolve()}
    assert listed <= pages


def test_generated_pages_are_fresh():
    """Run `python docs/make_reference.py` where this fails."""
    make_reference = importlib.import_module("make_reference")
    assert make_reference.stale() == []


def test_the_page_of_the_run_folder_names_every_column():
    from gradmedic.record.schema import SCHEMAS

    page = (DOCS / "record.md").read_text("utf-8")
    missing = {name for schema in SCHEMAS.values() for name in schema.names if f"`{name}`" not in page}
    assert missing == set()
