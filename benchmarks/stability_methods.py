"""What is compared: each method with its paper's parameters, as published and behind a guard against NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradmedic as gm

#: As published: none of them says what happens to a gradient that is not finite, hence nothing does.
PUBLISHED: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "norm 1.0": lambda: gm.clip.norm(1.0),
    "value 0.5": lambda: gm.clip.value(0.5),
    "AutoClip": gm.clip.autoclip,
    "median": gm.clip.median_clip,
    "ZClip": gm.clip.zclip,
    "AdaGC": gm.clip.adagc,
    "AGC": gm.clip.agc,
}
DEFAULT = "default"
GUARD = "skip + "


def _guarded(make: Callable[[], Any]) -> Callable[[], Any]:
    def guarded() -> Any:
        inner = make()
        skip = gm.guard.skip_nonfinite()
        return skip if inner is None else gm.clip.chain(skip, inner)

    return guarded


GUARDED = {GUARD + name: _guarded(make) for name, make in PUBLISHED.items()}
METHODS: dict[str, Callable[[], Any]] = {**PUBLISHED, DEFAULT: gm.guard.default, **GUARDED}
