"""What is compared: the usual practice, the guard, and each part of it."""

from __future__ import annotations

import gradmedic as gm
from crash_training import Arm

#: What people do: clip to norm 1.0, after unscaling.
USUAL = Arm("clip_grad_norm_(1.0)", 1.0, None)
#: The same script under `gm.watch(..., transform=gm.guard.default())`.
GUARDED = Arm("the same + guard.default()", 1.0, gm.guard.default)
MAIN = (USUAL, GUARDED)
PARTS = (
    Arm("guard.default() alone", None, gm.guard.default),
    Arm("clip_grad_norm_(1.0) + skip_nonfinite()", 1.0, gm.guard.skip_nonfinite),
    Arm("clip.zclip() alone", None, gm.clip.zclip),
)
