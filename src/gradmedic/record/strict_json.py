r"""JSON that every strict parser reads, for any Python value.

JSON has no NaN and no infinity. They are written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` and come
back as floats; a text that is spelled so by itself is written with a leading backslash, which reading takes off again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPED = re.compile(r"\\*(NaN|Infinity|-Infinity)")
_DEEPEST = 40


def dumps(value: Any) -> str:
    """Return `value` as one line of strict JSON; never raises.

    numpy values, tensors, tuples, sets and dataclasses become what JSON has for them; anything else its `str`. What
    is nested more than 40 deep (or within itself) is cut off there.
    """
    return json.dumps(_plain(value, 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """Return what `dumps` was given, with tuples as lists. Raises ValueError for text that is not JSON."""
    return _restored(json.loads(text))


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, float):
        return _number(float(value))
    try:
        return _plain_container(value, depth + 1)
    except Exception:  # a user's object whose own methods fail must not end the record
        return f"<{type(value).__name__}>"


def _plain_container(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return "…"
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {_key(key): _plain(entry, depth) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, depth) for entry in value]
    if isinstance(value, (set, frozenset)):
        return [_plain(entry, depth) for entry in sorted(value, key=str)]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, tensors
        return _plain(value.tolist(), depth)
    return _text(str(value))


def _key(key: Any) -> str:
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else str(key)


def _text(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be written to a file
    return "\\" + text if _ESCAPED.fullmatch(text) else text


def _number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        if value in _NAMES:
            return _NAMES[value]
        return value[1:] if _ESCAPED.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: _restored(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    return value
