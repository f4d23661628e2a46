"""What is compared: each method with its paper's parameters behind a guard against NaN; candidates for a default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradmedic as gm
from gradmedic.clip import adagc, agc, autoclip, chain, median_clip, norm, value, zclip
from gradmedic.guard import skip_nonfinite

#: As published: none of them says what becomes of a gradient that is not finite, hence nothing does.
PUBLISHED: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "norm 1.0": lambda: norm(1.0),
    "value 0.5": lambda: value(0.5),
    "AutoClip": autoclip,
    "median": median_clip,
    "ZClip": zclip,
    "AdaGC": adagc,
    "AGC": agc,
}
GUARD = "skip + "


def _guarded(make: Callable[[], Any]) -> Callable[[], Any]:
    def guarded() -> Any:
        inner = make()
        return skip_nonfinite() if inner is None else chain(skip_nonfinite(), inner)

    return guarded


GUARDED = {GUARD + name: _guarded(make) for name, make in PUBLISHED.items()}
CANDIDATES: dict[str, Callable[[], Any]] = {
    "skip + ZClip + norm 1.0": lambda: chain(skip_nonfinite(), zclip(), norm(1.0)),
}
#: What is trained. A published method's run is its guarded run until the first NaN batch, which ends it.
TRAINED: dict[str, Callable[[], Any]] = {**GUARDED, **CANDIDATES}


def default_name() -> str:
    """Return the name under which `gm.guard.default()` is trained here.

    Raises:
        LookupError: it is none of them, as after a change of the default.
    """
    wanted = gm.guard.default()
    for name, make in TRAINED.items():
        if make() == wanted:
            return name
    raise LookupError(f"gm.guard.default() is {wanted!r}, which is not trained here; add it to CANDIDATES")
