"""Writes the generated pages: `python docs/make_reference.py`; with `--check` it only says which ones are stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generate.api_page import api_page  # noqa: E402 - found only once the folder is on the path
from generate.metric_page import metric_page  # noqa: E402
from generate.rooms_picture import rooms_picture  # noqa: E402
from generate.rule_pages import rule_pages  # noqa: E402


def pages() -> Iterator[tuple[str, str]]:
    """Yield (path below docs/, text) of every generated page."""
    yield from rule_pages()
    yield "reference/metrics.md", metric_page()
    yield "reference/api.md", api_page()
    yield "images/rooms.svg", rooms_picture()


def stale() -> list[str]:
    """Return the pages whose files are not what the code would write."""
    return [path for path, text in pages() if not _same(HERE / path, text)]


def main(arguments: list[str]) -> int:
    """Write what is stale, or say so."""
    if "--check" in arguments:
        found = stale()
        for path in found:
            print(f"docs/{path} is stale: run `python docs/make_reference.py`")
        return bool(found)
    for path, text in pages():
        if not _same(HERE / path, text):
            (HERE / path).parent.mkdir(parents=True, exist_ok=True)
            (HERE / path).write_text(text, encoding="utf-8")
            print(f"wrote docs/{path}")
    return 0


def _same(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
