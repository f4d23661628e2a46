"""How to watch, and what that means for one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradmedic.clip.base import Transform
from gradmedic.probes.optimizer import StepOptions
from gradmedic.probes.rank_groups import RankGroups
from gradmedic.schedule import StepSchedule
from gradmedic.types import Backend


def _never(_step: int) -> bool:
    return False


def _always(_step: int) -> bool:
    return True


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
        shared: which steps get a table where tensors lie on several ranks: what all of them agree on without asking,
            whatever has gone wrong on one of them.
        groups: what the user says of tensors whose likes lie on other ranks; None: nothing.
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
    shared: StepSchedule = _always
    groups: RankGroups | None = None

    def of_step(self, step: int, optimizer: Any | None = None, *, spread: bool = False) -> StepOptions:
        """Return how a step is to be read.

        Args:
            step: its index.
            optimizer: the one that is about to make it; a fused one has the loss scale and the skip flag with it.
            spread: whether its tensors lie on several ranks.
        """
        keep = bool(self.schedule(step))
        if spread:
            full = bool(self.shared(step))
            soon = full or bool(self.shared(step + 1))  # what is read for the next step takes no collective
            options = StepOptions(full=full, keep=keep and full, sample=soon, direction=soon)
        else:
            soon = keep or bool(self.schedule(step + 1))
            options = StepOptions(full=keep or self.cheap, keep=keep, direction=soon)
            options.sample = keep or (soon and self.cheap)
        options.histogram = (options.full if spread else keep) and bool(self.histogram(step))
        if optimizer is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            options.divide_by = getattr(optimizer, "grad_scale", None)
            options.found_inf = getattr(optimizer, "found_inf", None)
        return options
