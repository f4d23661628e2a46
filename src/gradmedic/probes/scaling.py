"""A GradScaler's part in a step: scaled losses, unscaled gradients, and steps that it withholds."""

from __future__ import annotations

from typing import Any

import torch

from gradmedic.holdings import held_by
from gradmedic.probes.boundaries import Boundaries
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.loss_share import LossShare
from gradmedic.probes.treated import keep_scale
from gradmedic.probes.treatment import Treatment
from gradmedic.probes.withheld import WithheldSteps


class Scaling:
    """Follows GradScalers: an optimizer that is not fused never hears of a step that its scaler withholds.

    Args:
        fleet: the optimizers that are followed.
        reader: where clip calls leave their readings.
        clips: is told which gradients are unscaled.
        losses: divides losses by the scale in force.
        treatment: knows which steps a guard has skipped.
        withheld: remembers steps that were withheld.
        boundaries: where such a step ends.
    """

    def __init__(
        self,
        fleet: Fleet,
        reader: GradientReader,
        clips: ClipWatch,
        losses: LossShare,
        treatment: Treatment,
        withheld: WithheldSteps,
        boundaries: Boundaries,
    ) -> None:
        self._fleet = fleet
        self._reader = reader
        self._clips = clips
        self._losses = losses
        self._treatment = treatment
        self._withheld = withheld
        self._boundaries = boundaries
        self._waiting: set[int] = set()  # ids of optimizers whose `scaler.step` has begun and has not stepped them yet

    def unscaled(self, optimizer: Any) -> None:
        """A scaler has unscaled an optimizer's gradients: their values change by what is accounted for already."""
        self._clips.unscaled(optimizer)
        self._reader.touched(held_by(optimizer))

    def begin(self, optimizer: Any) -> None:
        """`scaler.step(optimizer)` begins."""
        self._waiting.add(id(optimizer))

    def stepping(self, optimizer: Any) -> None:
        """The optimizer steps: nothing is withheld."""
        self._waiting.discard(id(optimizer))

    def end(self, optimizer: Any, finished: bool) -> None:
        """`scaler.step(optimizer)` has ended; `finished` is False when it raised."""
        withheld = id(optimizer) in self._waiting
        self._waiting.discard(id(optimizer))
        if not withheld or not finished:
            return
        probe = self._fleet.find(optimizer)
        if probe is None:
            self._losses.another_stepped(optimizer)
            return
        self._withheld.withheld(probe.step)
        self._treatment.retract(probe)
        self._boundaries.withhold(probe, optimizer, "non-finite gradients under the loss scale")

    def updated(self, scaler: Any, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        """The scale was updated: a step that a guard has skipped is no proof that it may grow."""
        flags = list(self._treatment.uncredited)
        self._treatment.uncredited.clear()
        for flag in flags:
            keep_scale(scaler, flag, scale, tracker)
