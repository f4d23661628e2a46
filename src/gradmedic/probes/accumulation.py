"""What becomes of gradients between the backward pass that made them and the step that uses them.

They may be added to, erased (a bad batch, left out), or changed by something unknown; what was measured of them, and
what was decided about them, holds no longer then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gradmedic.probes.by_hand import HandUpdates
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.leftovers import Leftovers
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.threads import StepThreads
from gradmedic.probes.treatment import Treatment
from gradmedic.roster import Roster


class Accumulation:
    """Follows gradients from backward pass to backward pass; nothing is read while other threads may write.

    Args:
        roster, fleet, hands: the models, the optimizers that are followed, and what stands for one.
        reader: where clip calls leave their readings.
        treatment: holds decisions about gradients.
        clips, losses: are told what was erased.
        threads: which threads train.
    """

    def __init__(
        self,
        roster: Roster,
        fleet: Fleet,
        hands: HandUpdates,
        reader: GradientReader,
        treatment: Treatment,
        clips: ClipWatch,
        losses: LossMeter,
        threads: StepThreads,
    ) -> None:
        self._roster = roster
        self._fleet = fleet
        self._hands = hands
        self._reader = reader
        self._treatment = treatment
        self._clips = clips
        self._losses = losses
        self._threads = threads
        self._leftovers = Leftovers()

    def begin(self) -> None:
        """A backward pass begins."""
        if self._threads.alone():
            for probe in self._fleet.probes:
                probe.freshness.before_backward()

    def settle(self) -> None:
        """A backward pass begins, and a step made by hand before it is finished: what is left belongs to no step."""
        if self._threads.alone():
            self._notice_erased()
            self._reader.forget_changed()  # zeroed without a step: SAM between its two passes

    def notice_erased(self) -> None:
        """Gradients that were there and are gone without a step (a bad batch, left out) belong to no step."""
        if self._threads.alone():
            self._notice_erased()

    def put_aside(self) -> None:
        """The gradients were added to a trainer's own sum: that they are erased next says nothing."""
        self._leftovers.forget()

    def after_backward(self, stepped_inside: set[str]) -> dict[str, Any] | None:
        """A backward pass has ended.

        Args:
            stepped_inside: names of the optimizers that have stepped in it.

        Returns:
            The event to record when it added to gradients that were clipped already.
        """
        if not self._threads.alone():
            self._leftovers.forget()
            for probe in self._fleet.probes:
                probe.freshness.unseen()
            return None
        for probe in self._fleet.probes:
            if probe.name not in stepped_inside:  # what is left of its gradients has been used
                probe.freshness.after_backward()
        overtaken = self._reader.forget_changed()
        if overtaken:
            self._retract()
        by_owner = [probe.by_size() for probe in self._fleet.probes]
        self._leftovers.left([self._with_gradients()] if self._fleet.empty else by_owner)
        return self._clips.overtaken() if overtaken else None

    def _notice_erased(self) -> None:
        if not self._losses.count or not self._leftovers.erased(self._with_gradients):
            return
        self._leftovers.forget()
        self._losses.drop()
        self._reader.forget()
        self._clips.dropped()
        self._retract()
        for probe in self._fleet.probes:
            probe.freshness.erased()

    def _retract(self) -> None:
        for probe in self._fleet.probes:
            self._treatment.retract(probe)

    def _with_gradients(self) -> list[torch.Tensor]:
        if not self._fleet.empty:
            return [parameter for probe in self._fleet.probes for parameter in probe.by_size()]
        leaves = [p for each in self._roster.parameters if (p := each.reference()) is not None and not is_lazy(p)]
        return sorted([*leaves, *self._hands.leaves], key=torch.Tensor.numel)
