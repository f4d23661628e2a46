"""What to use when there is no time to choose."""

from __future__ import annotations

from typing import Any

from gradmedic.clip.chain import Chain, chain
from gradmedic.clip.methods.zclip import zclip
from gradmedic.clip.norm import norm
from gradmedic.guard.nonfinite import skip_nonfinite


def default(clip: Any = None) -> Chain:
    """Return the recommended protection: skip what is not finite, cut spikes down to the usual, and limit the rest.

    Chosen by the benchmark in docs/stability.md. ZClip alone follows norms that are too large from the first step on;
    a fixed limit of 1.0 alone lets a spike through that is ten times the usual norm of a quiet run.

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
