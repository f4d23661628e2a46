"""The lines of one optimizer: its loss and its gradient norm as sparklines, and what was done to its steps."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from gradmedic.plain_text import plain
from gradmedic.record.arrays import Array
from gradmedic.report.views.scalars import RATE_WINDOW, Scalars
from gradmedic.top.figures import number, share
from gradmedic.top.glyphs import NONFINITE, Glyphs, bucketed, levels, padded, signs
from gradmedic.top.words import WORDS

#: Beyond this ratio of largest to smallest a curve is drawn on a log scale.
_WIDE = 50.0
#: Cells that the words beside a curve take.
_WORDS_WIDTH = 44


def curve_lines(scalars: Scalars, *, several: bool, width: int, glyphs: Glyphs, lang: str) -> list[Text]:
    """Return the lines of one optimizer: loss, gradient norm, and one for the rest (the first where there are several).

    Args:
        scalars: its steps.
        several: whether there are other optimizers, so that its name has to be said.
        width: cells.
        glyphs, lang: signs and words.
    """
    words = WORDS[lang]
    labels = [words["loss"], words["norm"]]
    indent = max(cell_len(label) for label in labels) + 1
    made = [
        _curve(labels[0], scalars.columns["loss"], indent, width, glyphs, lang, log=None),
        _curve(labels[1], scalars.columns["grad_norm"], indent, width, glyphs, lang, log=True),
    ]
    deeds = _deeds(scalars, several, lang)
    return [deeds, *made] if several else [*made, deeds]


def _curve(label: str, values: Array, indent: int, width: int, glyphs: Glyphs, lang: str, log: bool | None) -> Text:
    finite = values[np.isfinite(values)]
    line = Text(padded(label, indent), style="bold", no_wrap=True)
    if not (~np.isnan(values)).any():
        return line.append("-", style="dim")
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if log is None:
        log = low > 0 and high > _WIDE * low
    room = max(8, width - indent - _WORDS_WIDTH)
    line.append(sparkline(values, room, log=log, glyphs=glyphs))
    line.append(" " * (room - len(line.plain) + len(padded(label, indent))))
    line.append("  " + _course(values, low, high, glyphs, lang, some=len(finite) > 0), style="not bold")
    return line


def sparkline(values: Array, width: int, *, log: bool, glyphs: Glyphs) -> Text:
    """Return a series as at most `width` signs between its smallest and its largest finite value.

    Args:
        values: [S], NaN where not recorded, infinite where not finite.
        width: cells.
        log: whether the scale is one of logarithms.
        glyphs: signs.
    """
    usable = values[np.isfinite(values) & ((values > 0) if log else True)]
    low, high = (float(usable.min()), float(usable.max())) if len(usable) else (1.0, 1.0)
    made = levels(bucketed(values, width, log=log), low, high, log=log)
    return coloured(made, glyphs, "cyan")


def coloured(made: Array, glyphs: Glyphs, style: str) -> Text:
    """Return the signs of levels, those that are not finite in red."""
    text = Text(signs(made, glyphs), style=f"not bold {style}")
    for at in np.flatnonzero(made == NONFINITE).tolist():
        text.stylize("bold red", at, at + 1)
    return text


def _course(values: Array, low: float, high: float, glyphs: Glyphs, lang: str, *, some: bool) -> str:
    words = WORDS[lang]
    known = values[~np.isnan(values)]
    first, last = (_finite_or(float(known[at])) for at in (0, -1))
    text = f"{first} {glyphs.arrow} {last}"
    return f"{text}  {words['min']} {number(low)} {words['max']} {number(high)}" if some else text


def _finite_or(value: float) -> str:
    """Return a number; what is not finite is recorded as infinite, whichever it was."""
    return number(value) if np.isfinite(value) else "NaN/inf"


def _deeds(scalars: Scalars, several: bool, lang: str) -> Text:
    """Return the line on learning rate, clipping and skipped steps."""
    words = WORDS[lang]
    parts = [f"{words['lr']} {number(_last(scalars.columns['lr']))}"]
    if scalars.clipped.any():
        recent = scalars.clipped[-RATE_WINDOW:]
        said = words["clipped"].format(
            recent=share(float(recent.mean())), n=len(recent), all=share(float(scalars.clipped.mean()))
        )
        threshold = _last(scalars.columns["clip_threshold"])
        threshold = _last(scalars.columns["transform_threshold"]) if np.isnan(threshold) else threshold
        at = "" if np.isnan(threshold) else " " + words["threshold"].format(threshold=number(threshold))
        parts.append(said + at)
    else:
        parts.append(words["not_clipped"])
    parts.append(words["skipped"].format(n=int(scalars.skipped.sum())))
    bad = int(np.isinf(scalars.columns["grad_norm"]).sum())
    line = Text(no_wrap=True)
    if several:
        line.append(f"{plain(scalars.optimizer)}  ", style="bold")
    if bad:
        line.append(words["not_finite"].format(n=bad) + "   ", style="bold red")
    line.append("   ".join(parts))
    return line


def _last(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else float("nan")
