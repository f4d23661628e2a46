"""What the person at the terminal has chosen to see, and what keys change."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace

import numpy as np

from gradmedic.record.arrays import Array
from gradmedic.top.layers import Layers

SORTS = ("trouble", "order", "norm")


@dataclass(frozen=True, slots=True)
class View:
    """A choice.

    Attributes:
        sort: "trouble" (worst first), "order" (of execution) or "norm" (largest first).
        offset: rows scrolled past.
        pattern: only tensors whose names have this in them; "*" stands for anything between.
        typing: what is being typed as the next pattern; None when nothing is.
        paused, quitting: whether the picture stands still; whether to leave.
    """

    sort: str = "trouble"
    offset: int = 0
    pattern: str = ""
    typing: str | None = None
    paused: bool = False
    quitting: bool = False


def press(view: View, key: str, page: int) -> View:
    """Return the view after a key.

    Args:
        view: before it.
        key: as `decode_keys` names it.
        page: rows that are shown at once.
    """
    if view.typing is not None:
        return _type(view, view.typing, key)
    if key == "q":
        return replace(view, quitting=True)
    if key == "s":
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)], offset=0)
    if key == "p":
        return replace(view, paused=not view.paused)
    if key in ("f", "/"):
        return replace(view, typing=view.pattern)
    if key == "escape":
        return replace(view, pattern="", offset=0)
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page, " ": page, "home": -(1 << 40)}
    if key == "end":
        return replace(view, offset=1 << 40)
    return replace(view, offset=max(0, view.offset + moves.get(key, 0)))


def _type(view: View, typed: str, key: str) -> View:
    if key == "enter":
        return replace(view, pattern=typed.strip(), typing=None, offset=0)
    if key == "escape":
        return replace(view, typing=None)
    if key == "backspace":
        return replace(view, typing=typed[:-1])
    return replace(view, typing=(typed + key)[:80]) if len(key) == 1 else view


def chosen(layers: Layers, view: View) -> Array:
    """Return the places of the rows to show, in order [N]."""
    kept = np.array([at for at, row in enumerate(layers.rows) if _matches(row.name, view.pattern)], dtype=np.int64)
    if view.sort == "trouble":
        return kept[np.argsort(-layers.trouble[kept], kind="stable")]
    if view.sort == "norm":
        largest = np.nan_to_num(layers.last_norm[kept], nan=-1.0, posinf=np.inf)
        return kept[np.argsort(-largest, kind="stable")]
    return kept


def clamped(offset: int, rows: int, page: int) -> int:
    """Return an offset that leaves no page half empty."""
    return max(0, min(offset, rows - page))


def _matches(name: str, pattern: str) -> bool:
    if not pattern:
        return True
    if any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatchcase(name.lower(), f"*{pattern.lower()}*")
    return pattern.lower() in name.lower()
