"""A paragraph that breaks lines as its language does: English at spaces, Chinese between any two characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

#: A Chinese character or full-width sign with the closing signs behind it (they must not begin a line), or a word.
_TOKEN = re.compile(
    r"[（“]*[\u2e80-\u9fff\uff00-\uffef“”、。][，。；：、）”？！]*|[^\s\u2e80-\u9fff\uff00-\uffef“”、。]+|\s+"
)


class Paragraph:
    """Text with an optional bold label before it, wrapped to the console's width."""

    def __init__(self, body: str, label: str = "", style: str = "") -> None:
        self.body, self.label, self.style = body, label, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        text = "\n".join(wrap(self.label + self.body, options.max_width))
        shown = Text(text, style=self.style, overflow="fold")
        shown.stylize("bold", 0, len(self.label.rstrip()))
        yield shown


def wrap(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text, each at most `width` cells wide where its words allow it."""
    line = ""
    for token in _TOKEN.findall(text):
        if line and cell_len(line + token.rstrip()) > width:
            yield line.rstrip()
            line = ""
        if line or not token.isspace():
            line += token
    if line.strip():
        yield line.rstrip()
