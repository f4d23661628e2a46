"""Sphinx settings: `make docs` builds these pages into build/docs, and any warning is an error."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

project = "gradmedic"
author = "the gradmedic authors"
copyright = f"{datetime.now(tz=timezone.utc).year}, {author}"
#: Read, not imported: building pages needs neither torch nor the package.
_source = HERE.parent / "src" / "gradmedic" / "__init__.py"
if _source.is_file():
    version = re.findall(r'^__version__ = "(.+)"$', _source.read_text(encoding="utf-8"), flags=re.MULTILINE)[0]
else:  # the pages of an sdist, beside a package that is installed
    version = metadata.version("gradmedic")
release = version

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["**/.*"]
language = "en"
nitpicky = True

html_theme = "furo"
html_title = f"gradmedic {release}"
html_static_path: list[str] = []
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

#: A link to a page outside docs/ works in the repository, and has no target on the site.
_OUTWARD = re.compile(r"\[([^\]\[]+)\]\(((?:\.\./)+(?!zh/|reference/)[\w./-]+\.md)(?:#[\w-]*)?\)")


def setup(app: Any) -> None:
    """Name the pages that are in the repository only, instead of linking to them."""
    app.connect("source-read", _name_outward_links)


def _name_outward_links(app: Any, page: str, source: list[str]) -> None:
    def named(found: re.Match[str]) -> str:
        target = (HERE / page).parent.joinpath(found[2]).resolve()
        if target.is_relative_to(HERE):
            return found[0]
        path = target.relative_to(HERE.parent).as_posix()
        words = found[1].strip("`")
        return f"`{path}`" if words == path else f"{words} (`{path}`)"

    source[0] = _OUTWARD.sub(named, source[0])
