"""Calls of torch's clip functions by the script: what was measured before them, and whether they are in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradmedic.probes.accumulation import Accumulation
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.optimizer import StepOptions
from gradmedic.probes.publishing import Output
from gradmedic.probes.treating import Treating
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.roster import Roster
from gradmedic.torch_hooks import ClipCall


class ClipCalls:
    """Reads gradients before the script clips them, and lets our own treatment go first.

    Args:
        roster, fleet: the models, and the optimizers that are followed.
        reader: where the readings wait for the step.
        clips: judges the place of each call.
        losses: knows the loss scale.
        accumulation: notices gradients that were erased.
        treating: our own treatment.
        options: how to watch.
        output: where events go.
    """

    def __init__(
        self,
        roster: Roster,
        fleet: Fleet,
        reader: GradientReader,
        clips: ClipWatch,
        losses: LossMeter,
        accumulation: Accumulation,
        treating: Treating,
        options: WatchOptions,
        output: Output,
    ) -> None:
        self._roster = roster
        self._fleet = fleet
        self._reader = reader
        self._clips = clips
        self._losses = losses
        self._accumulation = accumulation
        self._treating = treating
        self._options = options
        self._output = output

    def before_norm(self, parameters: Sequence[torch.Tensor]) -> None:
        """The script is about to measure gradients for its clip."""
        watched = self._watched(parameters)
        self._accumulation.notice_erased()
        self._treating.before_clip(watched)

    def before(self, call: ClipCall) -> None:
        """The script is about to clip."""
        watched = self._watched(call.parameters)
        if not watched:
            return
        self._accumulation.notice_erased()
        keys = {id(parameter) for parameter in watched}
        owner = next((probe for probe in self._fleet.probes if probe.owns(keys)), None)
        event = self._clips.classify(call, owner, self._losses)
        if event is not None:
            self._output.event({"step": owner.step if owner else 0, **event})
        if not self._clips.effective(owner):
            return
        if call.clip_value is not None:  # a clip by value measures nothing first, so nobody was told before
            self._treating.before_clip(watched)
        options = (
            StepOptions(histogram=True) if owner is None else self._options.of_step(owner.step, spread=owner.spread)
        )
        scale = self._losses.scale if self._clips.still_scaled(owner, self._losses) else None
        self._reader.before_clip(watched, full=options.full, histogram=options.histogram, divide_by=scale)

    def after(self, call: ClipCall) -> None:
        """The script has clipped."""
        self._reader.after_clip(call)

    def _watched(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = {id(p): p for p in parameters if p.requires_grad}
        if not self._roster.discovering:
            known = {key for key, p in found.items() if self._roster.lookup(p) is not None}
            known |= {key for probe in self._fleet.probes for key in found if probe.owns({key})}
            found = {key: p for key, p in found.items() if key in known}
        return list(found.values())
