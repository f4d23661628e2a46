"""What to use when there is no time to choose."""

from __future__ import annotations

from typing import Any

from gradmedic.clip.chain import Chain, chain
from gradmedic.clip.methods.zclip import zclip
from gradmedic.clip.norm import norm
from gradmedic.guard.nonfinite import skip_nonfinite


def default(clip: Any = None) -> Chain:
    """Return the recommended protection: skip what is not finite, cut spikes down to the usual, and limit the rest.

    In the benchmark of docs/stability.md 99 % of unstable runs reach their target with it, and 88 % with ZClip alone,
    which follows norms that are too large from the first step on. ZClip's part is the quiet run, whose spikes a fixed
    limit of 1.0 would let through; the benchmark's runs are too wild to show it.

    Args:
        clip: a transform, or a number for `clip.norm(number)`, in place of the recommended clips.

    Returns:
        `chain(skip_nonfinite(), zclip(), norm(1.0))`, or with `clip` in place of the last two. Under SGD a limit of 1.0
        is a choice of step length as well: where healthy norms are larger, pass a clip of your own
        (`gradmedic clip RUN` proposes one).

    Example:
        >>> default().may_skip
        True
    """
    return chain(skip_nonfinite(), *((zclip(), norm(1.0)) if clip is None else (clip,)))
