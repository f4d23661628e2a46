"""The table of tensors: one line each, with a heat strip of its latest norms."""

from __future__ import annotations

import math

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from gradmedic.plain_text import plain
from gradmedic.record.arrays import Array
from gradmedic.top.figures import number, share
from gradmedic.top.glyphs import MISSING, NONFINITE, Glyphs, bucketed, cut_left, levels, padded
from gradmedic.top.layers import Layers
from gradmedic.top.words import WORDS

_NUMBER, _SHARE, _STATE = 8, 5, 11
#: Least and largest width of a name; what is left is for the strips.
_LEAST_NAME, _LARGEST_NAME = 22, 60
#: Red is left to what is not finite: the largest layer of a healthy model is no fire.
_HEAT = ("blue", "blue", "cyan", "cyan", "green", "green", "yellow", "yellow")
#: A scale spans at least so much, so that the noise of layers that are alike does not fill it.
_LEAST_SPAN = 100.0
_BAD = {"non-finite": "bold red", "zero": "yellow", "no gradient": "yellow", "unused": "yellow"}


def tensor_lines(layers: Layers, places: Array, *, width: int, glyphs: Glyphs, lang: str) -> list[Text]:
    """Return one line for each of some tensors.

    Args:
        layers: all of them; the strips share one scale, so that lines can be compared.
        places: those to show, in order.
        width: cells.
        glyphs, lang: signs and words.
    """
    name_width, strip_width = _widths(layers, width)
    low, high = scale_of(layers)
    lines = []
    for at in places.tolist():
        row = layers.rows[at]
        troubled = layers.trouble[at] >= 1
        line = Text(no_wrap=True)
        name = cut_left(plain(row.name), name_width, glyphs)
        line.append(padded(name, name_width), style="bold" if troubled else "")
        line.append(f" {_norm(layers.last_norm[at]):>{_NUMBER}}")
        line.append(f" {number(layers.ratio[at]):>{_NUMBER}}")
        line.append(f" {share(layers.zeros[at]):>{_SHARE}} ")
        line.append(*_state(layers, at, lang, glyphs))
        line.append(" ")
        line.append_text(_strip(layers.norm[:, at], strip_width, low, high, glyphs))
        lines.append(line)
    return lines


def heading(layers: Layers, first: int, shown: int, total: int, *, width: int, glyphs: Glyphs, lang: str) -> Text:
    """Return the line above the tensors: which of them are shown, what the columns are, the scale of the strips."""
    words = WORDS[lang]
    name_width, strip_width = _widths(layers, width)
    which = words["tensors"].format(first=first + 1 if shown else 0, last=first + shown, n=total)
    line = padded(cut_left(which, name_width, glyphs), name_width)
    for key, size in (("head_norm", _NUMBER), ("head_ratio", _NUMBER), ("head_zeros", _SHARE)):
        line += " " + " " * (size - cell_len(words[key])) + words[key]
    line += " " + padded(words["head_state"], _STATE) + " "
    low, high = scale_of(layers)
    scale = f"{number(low)} {glyphs.ramp[0]}{glyphs.dash}{glyphs.ramp[-1]} {number(high)}" if high > 0 else ""
    if len(scale) <= strip_width:
        line += scale
    return Text(line, style="bold underline" if glyphs.cut == "…" else "bold", no_wrap=True)


def scale_of(layers: Layers) -> tuple[float, float]:
    """Return the ends of the strips' scale, which holds all norms; (0, 0) when there is none above zero."""
    usable = layers.norm[np.isfinite(layers.norm) & (layers.norm > 0)]
    if not len(usable):
        return 0.0, 0.0
    low, high = float(usable.min()), float(usable.max())
    if high / _LEAST_SPAN < low:
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = middle / math.sqrt(_LEAST_SPAN), min(middle * math.sqrt(_LEAST_SPAN), np.finfo(float).max)
    return low, high


def _widths(layers: Layers, width: int) -> tuple[int, int]:
    fixed = 1 + _NUMBER + 1 + _NUMBER + 1 + _SHARE + 1 + _STATE + 1
    longest = max((cell_len(plain(row.name)) for row in layers.rows), default=_LEAST_NAME)
    left = max(_LEAST_NAME + 8, width - fixed)
    name = min(longest, _LARGEST_NAME, max(_LEAST_NAME, left * 3 // 5))
    return max(_LEAST_NAME, name), left - max(_LEAST_NAME, name)


def _norm(value: float) -> str:
    return "NaN/inf" if np.isinf(value) else number(value)


def _state(layers: Layers, at: int, lang: str, glyphs: Glyphs) -> tuple[str, str]:
    """Return (text, style): what is wrong by itself first, then the code of a finding that names it."""
    state = layers.rows[at].state
    if state == "ok" and layers.codes[at]:
        return padded(" ".join(layers.codes[at][:2]), _STATE), "bold magenta"
    if state == "not visible" and not len(layers.norm):  # no table has come yet: nothing is known
        return padded("-", _STATE), "dim"
    return padded(cut_left(WORDS[lang][state], _STATE, glyphs), _STATE), _BAD.get(state, "dim")


def _strip(norms: Array, width: int, low: float, high: float, glyphs: Glyphs) -> Text:
    recent = bucketed(norms[-4 * width :], width, log=True)
    made = levels(recent, low or 1.0, high or 1.0, log=True)
    text = Text()
    for level in made.tolist():
        style = "bold red" if level == NONFINITE else ("dim" if level >= MISSING else _HEAT[level])
        text.append((glyphs.ramp + glyphs.nonfinite + glyphs.missing + glyphs.zero)[level], style=style)
    return text
