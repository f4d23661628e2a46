"""A comparison as text, Markdown, JSON or HTML."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradmedic.compare.comparison import Comparison
from gradmedic.compare.sheet import Block, sheet_of
from gradmedic.report.paragraph import Paragraph

#: Cells are cut here: a command line may be as long as it likes.
_LONGEST_CELL = 200


def render_text(comparison: Comparison, *, lang: str = "en", console: Console | None = None, width: int = 80) -> str:
    """Show a comparison in a terminal, or return it as text.

    Args:
        comparison: what to show.
        lang: "en" or "zh".
        console: where to print; None returns the text, without colour.
        width: columns of that text.

    Returns:
        The text; empty when it was printed.
    """
    screen = Group(*_parts(sheet_of(comparison, lang)))
    if console is not None:
        console.print(screen)
        return ""
    plain = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with plain.capture() as captured:
        plain.print(screen)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def render_markdown(comparison: Comparison, *, lang: str = "en") -> str:
    """Return a comparison as Markdown, whole."""
    blocks = sheet_of(comparison, lang, whole=True)
    lines: list[str] = []
    for level, block in enumerate(blocks):
        lines += [f"{'#' if not level else '##'} {_in_markdown(block.title)}", ""]
        lines += [f"{_in_markdown(sentence)}\n" for sentence in block.sentences]
        if block.rows:
            header = block.header or ("",) * len(block.rows[0])
            lines.append(f"| {' | '.join(map(_in_markdown, header))} |")
            lines.append("|" + "---|" * len(header))
            lines += [f"| {' | '.join(map(_in_markdown, row))} |" for row in block.rows]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def render_json(comparison: Comparison) -> str:
    """Return a comparison as strict JSON."""
    return json.dumps(comparison.to_json(), ensure_ascii=False, allow_nan=False, indent=2)


def render_section(comparison: Comparison, *, lang: str = "en") -> str:
    """Return a comparison as one HTML section, whole, to stand on a page; every text in it is escaped."""
    first, *others = sheet_of(comparison, lang, whole=True)
    parts = [f'<section class="comparison" id="comparison"><style>{_STYLE}</style>', "<details open>"]
    parts += [f"<summary><h2>{_escaped(first.title)}</h2></summary>", *_sentences(first), '<div class="cards">']
    for block in others:
        parts += [f"<div><h3>{_escaped(block.title)}</h3>", *_sentences(block), *_html_table(block), "</div>"]
    return "\n".join([*parts, "</div></details></section>"])


def _sentences(block: Block) -> list[str]:
    return [f"<p>{_escaped(sentence)}</p>" for sentence in block.sentences]


def _html_table(block: Block) -> Iterator[str]:
    if not block.rows:
        return
    # Focusable, so that arrow keys scroll it.
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_escaped(block.title)}"><table>'
    if any(block.header):
        cells = "".join(f'<th scope="col">{_escaped(cell)}</th>' for cell in block.header)
        yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    yield from (_html_row(row) for row in block.rows)
    yield "</tbody></table></div>"


#: On the report page's own colours, with others where it has none.
_STYLE = (
    ".comparison{margin:14px 18px 0;padding:8px 16px;background:var(--panel,Canvas);"
    "border:1px solid var(--line,GrayText);border-radius:8px}"
    ".comparison h2,.comparison h3{margin:6px 0;font-size:15px}.comparison summary h2{display:inline}"
    ".comparison p{margin:2px 0;max-width:70em}"
    ".comparison .cards{display:flex;flex-wrap:wrap;gap:6px 36px}.comparison .cards>div{max-width:100%}"
    ".comparison .scroll{overflow:auto;max-height:22em}"
    ".comparison table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".comparison th,.comparison td{padding:2px 14px 2px 0;text-align:left;vertical-align:top;font-size:13px}"
    ".comparison td{overflow-wrap:anywhere;max-width:28em}.comparison tbody th{font-weight:normal}"
    ".comparison tr{border-bottom:1px solid var(--line,GrayText)}"
    "@media print{.comparison .scroll{max-height:none}}"
)


def _html_row(row: Sequence[str]) -> str:
    label, *cells = row
    return f'<tr><th scope="row">{_escaped(label)}</th>{"".join(f"<td>{_escaped(cell)}</td>" for cell in cells)}</tr>'


def _escaped(text: str) -> str:
    return html.escape(_short(text)).encode("utf-8", "replace").decode("utf-8")


def _in_markdown(text: str) -> str:
    one_line = " ".join(_short(text).split())
    for sign in "\\`*_[]<>|#":
        one_line = one_line.replace(sign, f"\\{sign}")
    return one_line


def _short(text: str) -> str:
    """Return a text that no terminal stumbles over: one line, control signs spelled out, of bounded length."""
    plain = text if text.isprintable() else "".join(_sign(sign) for sign in text)
    return plain if len(plain) <= _LONGEST_CELL else plain[: _LONGEST_CELL - 1] + "…"


def _sign(sign: str) -> str:
    return sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")


def _parts(blocks: Sequence[Block]) -> Iterator[RenderableType]:
    for level, block in enumerate(blocks):
        if level:
            yield Text("")
        yield Text(_short(block.title), style="bold")
        for sentence in block.sentences:
            yield Padding(Paragraph(_short(sentence)), (0, 0, 0, 2))
        if block.rows:
            yield Padding(_table(block), (0, 0, 0, 2))


def _table(block: Block) -> Table:
    table = Table(box=None, show_header=any(block.header), header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    width = max(len(block.header), *(len(row) for row in block.rows))
    for at in range(width):
        title = block.header[at] if at < len(block.header) else ""
        table.add_column(Text(title), overflow="fold", ratio=None)
    for row in block.rows:
        table.add_row(*(Text(_short(cell)) for cell in row))
    return table
