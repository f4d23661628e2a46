"""Guards: transforms that skip steps, or end training, when something is wrong."""

from __future__ import annotations

from gradmedic.guard.breaker import breaker as breaker
from gradmedic.guard.nonfinite import skip_nonfinite as skip_nonfinite
from gradmedic.guard.recommended import default as default
from gradmedic.guard.spikes import skip_spikes as skip_spikes

__all__ = ["breaker", "default", "skip_nonfinite", "skip_spikes"]
