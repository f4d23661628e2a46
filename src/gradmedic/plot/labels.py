"""Names as they may stand in a figure: short, on one line, and without what matplotlib would take for a command."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gradmedic.report.notebook.markup import escape_sequence, visible

#: Widest label, in columns of a letter; wide characters take two.
WIDTH = 36

#: Families that have Chinese characters, on the systems where they come with the system.
_WIDE_FAMILIES = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Noto Sans CJK JP",
    "Droid Sans Fallback",
    "Arial Unicode MS",
    "Noto Serif CJK JP",
)

_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def label(name: str, width: int = WIDTH) -> str:
    """Return a name of a run as text for matplotlib.

    Control characters become escapes, the middle of what is too long becomes an ellipsis, characters that no font at
    hand can draw become escapes as well, and `$` is kept from starting a formula.

    Args:
        name: any text.
        width: columns that it may take, >= 3.

    Example:
        >>> label("encoder.layers.0.self_attn.in_proj_weight", 20)
        'encoder.l…roj_weight'
    """
    return _escaped(shortened(_drawable(visible(name)), width))


def shortened(text: str, width: int) -> str:
    """Return text of at most `width` columns: what is longer loses its middle."""
    if columns_of(text) <= width:
        return text
    tail = _fitting(text[::-1], width // 2)[::-1]
    return _fitting(text, width - 1 - columns_of(tail)) + "…" + tail


def font_families() -> list[str] | None:
    """Return font families, the user's own first, that together draw Chinese too; None where they do as they are."""
    import matplotlib

    own = list(matplotlib.rcParams["font.family"])
    wide = _wide_family()
    return None if wide is None or wide in own else [*own, wide]


def draws_chinese() -> bool:
    """Whether a font with Chinese characters is at hand."""
    return not _missing("层梯度范数")


def _drawable(text: str) -> str:
    missing = _missing("".join(sorted({each for each in text if ord(each) > 0x7E})))
    return "".join(escape_sequence(each) if each in missing else each for each in text) if missing else text


def _missing(characters: str) -> frozenset[str]:
    import matplotlib

    return _missing_from(characters, tuple(map(str, matplotlib.rcParams["font.family"])))


@lru_cache(maxsize=1024)
def _missing_from(characters: str, families: tuple[str, ...]) -> frozenset[str]:
    """Return those of the characters that neither the user's fonts nor the one found for Chinese can draw."""
    if not characters:
        return frozenset()
    wide = _wide_family()
    known: set[int] = set()
    for family in (*families, *((wide,) if wide else ())):
        known |= _glyphs(family)
    return frozenset(each for each in characters if ord(each) not in known)


@lru_cache(maxsize=32)
def _glyphs(family: str) -> frozenset[int]:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    path = font_manager.findfont(font_manager.FontProperties(family=[family]))
    return frozenset(FT2Font(path).get_charmap())


@lru_cache(maxsize=1)
def _wide_family() -> str | None:
    from matplotlib import font_manager

    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((family for family in _WIDE_FAMILIES if family in installed), None)


def _escaped(text: str) -> str:
    import matplotlib

    if matplotlib.rcParams["text.usetex"]:
        return "".join(_TEX.get(each, each) for each in text)
    return text.replace("$", r"\$")


def columns_of(text: str) -> int:
    """Return how many letters wide a text is."""
    return sum(map(_width, text))


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _fitting(text: str, width: int) -> str:
    """Return as much of the beginning as fits."""
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > width:
            return text[:at]
    return text


def unique_labels(names: Sequence[str], width: int = WIDTH) -> list[str]:
    """Return one label a name.

    Where an ellipsis would make labels equal, the words of long names are abbreviated instead, and what is still equal
    is numbered.

    Example:
        >>> unique_labels(["encoder.layers.0.attention", "encoder.layers.1.attention"], 18)
        ['enc.lay.0.att', 'enc.lay.1.att']
    """
    made = [label(name, width) for name in names]
    if len(set(made)) < len(set(names)):
        made = [label(abbreviated(name, width), width) for name in names]
    seen: dict[str, int] = {}
    for at, text in enumerate(made):
        count = seen[text] = seen.get(text, 0) + 1
        made[at] = text if count == 1 else f"{text} #{count}"
    return made


def abbreviated(name: str, width: int) -> str:
    """Return a dotted name with its words cut to three letters, from the left, until it fits; numbers stay.

    Example:
        >>> abbreviated("encoder.layers.0.self_attn.out_proj", 28)
        'enc.lay.0.self_attn.out_proj'
    """
    parts = name.split(".")
    for at in range(len(parts)):
        if columns_of(".".join(parts)) <= width:
            break
        parts[at] = parts[at][:3] if not parts[at].isdecimal() else parts[at]
    return ".".join(parts)


def keep_plain(texts: Sequence[Any]) -> None:
    """Let text objects draw Chinese where a font for it is installed, without a change of any default."""
    families = font_families()
    for text in texts:
        if families is not None:
            text.set_fontfamily(families)
