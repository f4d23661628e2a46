"""Whether the patterns of `--limit` have matched anything: an alarm that can never ring must say so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

_WORDS = {
    "en": "--limit: the pattern {pattern!r} matched no parameter and no module, so nothing was limited by it; near "
    "names: {near}",
    "zh": "--limit：模式 {pattern!r} 没有匹配任何参数或模块，因此没有起到限制作用；相近的名称：{near}",
}


def unmatched_limits(limits: Mapping[str, float], run: Any, lang: str) -> list[str]:
    """Return a sentence for each pattern that matches nothing of what a run has trained.

    Args:
        limits: pattern -> norm; the pattern "" stands for the whole model.
        run: the run; its events of kind "facts" tell the names.
        lang: "en" or "zh".

    Returns:
        The sentences, in the order of the patterns; none where the names are not known.
    """
    names = _names(run.events)
    patterns = [pattern for pattern in limits if pattern] if names else []
    return [
        _WORDS[lang].format(pattern=pattern, near=", ".join(_near(pattern, names)))
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]


def _names(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all parameters, and of the modules above them."""
    found: dict[str, None] = {}
    for event in events:
        for name in event.get("facts", {}).get("parameters", {}) if event.get("kind") == "facts" else ():
            parts = name.split(".")
            found.update((".".join(parts[:depth]), None) for depth in range(1, len(parts) + 1))
    return list(found)


def _near(pattern: str, names: list[str]) -> list[str]:
    return difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
