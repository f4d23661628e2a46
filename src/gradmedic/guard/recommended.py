"""What to use when there is no time to choose."""

from __future__ import annotations

from typing import Any

from gradmedic.clip.chain import Chain, chain
from gradmedic.clip.methods.zclip import zclip
from gradmedic.guard.nonfinite import skip_nonfinite


def default(clip: Any = None) -> Chain:
    """Return the recommended protection.

    Args:
        clip: a transform, or a number for `clip.norm(number)`, in place of the recommended clip.

    Returns:
        A transform.

    Example:
        >>> default().may_skip
        True
    """
    return chain(skip_nonfinite(), zclip() if clip is None else clip)
