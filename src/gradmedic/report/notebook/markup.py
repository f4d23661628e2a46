"""Pieces of HTML. All styling is inline: a notebook shares its page with others, and has no style sheet of ours."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Sequence

#: Text takes the notebook's own colour; lines and shades are grey on light and dark alike.
_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;border:none;background:none"
_NUMBER = "padding:2px 10px 2px 0;text-align:right;vertical-align:top;border:none;background:none"
_TABLE = "border-collapse:collapse;margin:4px 0;font-size:90%;background:none;color:inherit"
_BOX = "border:1px solid rgba(128,128,128,.4);border-radius:4px;padding:8px 12px;max-width:62em;color:inherit"
FAINT = "opacity:.7"
#: Readable on white and on black: contrast with each is 4 to 1 or nearly so.
SEVERITY = {"info": "#3f87c7", "warning": "#b8790b", "error": "#d9541e", "critical": "#e0246b"}
BROKEN = "#e0007f"

#: Letters of a name that are shown; the middle of longer ones is left out, the whole name is its tooltip.
_NAME = 60


def visible(text: str) -> str:
    """Return text with line breaks, terminal escapes, marks of direction and lone surrogates written as escapes.

    Example:
        >>> visible("a\\nb")
        'a\\\\nb'
    """
    return "".join(escape_sequence(each) if _is_invisible(each) else each for each in text)


def escape_sequence(character: str) -> str:
    """Return a character as Python would write it in ASCII."""
    return character.encode("unicode_escape").decode("ascii")


def escaped(text: str) -> str:
    """Return text as HTML, on one line."""
    return html.escape(visible(text))


def name(text: str) -> str:
    """Return the name of something as HTML: in the middle of long ones an ellipsis, with the whole as a tooltip."""
    shown = visible(text)
    if len(shown) <= _NAME:
        return f"<code>{html.escape(shown)}</code>"
    half = _NAME // 2
    return f'<code title="{html.escape(shown[:2000])}">{html.escape(shown[:half])}…{html.escape(shown[-half:])}</code>'


def number(value: float | int | None) -> str:
    """Return a number as HTML: "–" where it is not known, and in colour what is not finite."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        text = "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        return f'<b style="color:{BROKEN}">{text}</b>'
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def box(*parts: str) -> str:
    """Return parts in a frame."""
    return f'<div style="{_BOX}">{"".join(parts)}</div>'


def heading(text: str, beside: str = "") -> str:
    """Return a line in bold, of HTML already escaped, with something fainter beside it."""
    faint = f' <span style="{FAINT}">{beside}</span>' if beside else ""
    return f"<div><b>{text}</b>{faint}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 10**6) -> str:
    """Return a table of HTML cells; columns from `numbers_from` on hold numbers and end at the right."""
    styles = [_NUMBER if at >= numbers_from else _CELL for at in range(len(head))]
    top = "".join(f'<th style="{style};{FAINT}">{text}</th>' for style, text in zip(styles, head, strict=True))
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{style}">{text}</td>' for style, text in zip(styles, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table style="{_TABLE}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def severity(which: str, text: str) -> str:
    """Return the badge of a severity."""
    color = SEVERITY.get(which, "#808080")
    return (
        f'<span style="color:{color};border:1px solid {color};border-radius:3px;padding:0 4px">{escaped(text)}</span>'
    )


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character)[0] == "C" or character in "\u2028\u2029"
