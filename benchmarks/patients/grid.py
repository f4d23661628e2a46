"""A table of texts, on the terminal and as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

#: Where there is nothing to say.
NONE = "–"


@dataclass
class Grid:
    """A titled table.

    Attributes:
        title: heading.
        header: of the columns.
        rows: of texts, each as long as the header.
        note: a sentence below.
    """

    title: str
    header: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""

    def add(self, *cells: str) -> None:
        """Append a row."""
        if len(cells) != len(self.header):
            raise ValueError(f"expected {len(self.header)} cells in {self.title!r}, got {len(cells)}")
        self.rows.append(cells)


def share(value: float | None) -> str:
    """Return a share in percent."""
    return NONE if value is None else f"{100 * value:.1f}".removesuffix(".0") + " %"


def steps(value: float | None) -> str:
    """Return a number of steps."""
    return NONE if value is None else f"{value:g}"


def count(value: int) -> str:
    """Return a whole number."""
    return str(value)


def one_in(part: int, whole: int) -> str:
    """Return "part / whole"."""
    return f"{part} / {whole}" if whole else NONE


def render(grids: Iterable[Grid], console: Console) -> None:
    """Print tables."""
    for grid in grids:
        table = Table(title=grid.title, title_justify="left", caption=grid.note or None, caption_justify="left")
        for at, name in enumerate(grid.header):
            numeric = at > 0 and all(row[at][:1].isdigit() or row[at] == NONE for row in grid.rows)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in grid.rows:
            table.add_row(*row, style="bold" if "total" in row[:1] else None)
        console.print(table)


def to_markdown(grids: Iterable[Grid]) -> str:
    """Return tables as markdown."""
    parts = []
    for grid in grids:
        lines = [f"## {grid.title}", "", _line(grid.header), _line(["---"] * len(grid.header))]
        lines += [_line(row) for row in grid.rows]
        parts.append("\n".join([*lines, *(["", grid.note] if grid.note else []), ""]))
    return "\n".join(parts)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
