"""How to watch, and what that means for one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradmedic.clip.base import Transform
from gradmedic.probes.optimizer import StepOptions
from gradmedic.schedule import StepSchedule
from gradmedic.types import Backend


def _never(_step: int) -> bool:
    return False


@dataclass(slots=True)
class WatchOptions:
    """How to watch.

    Attributes:
        schedule: which steps are recorded in full.
        histogram: which steps carry log2 histograms.
        backend: statistics backend.
        transform: what to do to gradients, or None.
        cheap: a full table costs no more than norms do here (native kernel), so every step gets one.
        hands: take the end of a backward pass for the boundary while no optimizer is seen.
        modules: which modules are probed: "auto", patterns over names, or None.
        modules_every: so many steps lie between two samples of them.
        triggered: whether something has just gone wrong before a step.
    """

    schedule: StepSchedule
    histogram: StepSchedule
    backend: Backend = "auto"
    transform: Transform | None = None
    cheap: bool = True
    hands: bool = False
    modules: str | list[str] | None = "auto"
    modules_every: int = 50
    triggered: StepSchedule = _never

    def of_step(self, step: int, optimizer: Any | None = None) -> StepOptions:
        """Return how a step is to be read.

        Args:
            step: its index.
            optimizer: the one that is about to make it; a fused one has the loss scale and the skip flag with it.
        """
        keep = bool(self.schedule(step))
        soon = keep or bool(self.schedule(step + 1))
        options = StepOptions(full=keep or self.cheap, keep=keep, direction=soon)
        options.sample = keep or (soon and self.cheap)
        options.histogram = keep and bool(self.histogram(step))
        if optimizer is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            options.divide_by = getattr(optimizer, "grad_scale", None)
            options.found_inf = getattr(optimizer, "found_inf", None)
        return options
