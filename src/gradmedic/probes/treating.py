"""Carrying a transform through the step: at its boundary, before the script's own clip, and when a guard trips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.clip.base import Halt
from gradmedic.clip.late_halts import ENDING
from gradmedic.isolation import Isolation, part
from gradmedic.probes.boundaries import Boundaries
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.loss_share import LossShare
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.publishing import Output
from gradmedic.probes.together import APART
from gradmedic.probes.treated import Readings
from gradmedic.probes.treatment import Treatment
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.stats.parts import readable
from gradmedic.torch_hooks import inside_backward


class Treating:
    """Tells a treatment when to decide, and ends the training when it says so.

    Args:
        treatment: the transform's states, and the one place where gradients are touched.
        fleet: the optimizers that are followed.
        reader: where clip calls leave their readings.
        clips: knows whether gradients are there, and whether they are still scaled.
        losses: knows the loss of the step.
        options: how to watch.
        boundaries: where a step ends that a guard has stopped.
        output: is told that training ends.
        isolation: what is switched off when it fails.
    """

    def __init__(
        self,
        treatment: Treatment,
        fleet: Fleet,
        reader: GradientReader,
        clips: ClipWatch,
        losses: LossShare,
        options: WatchOptions,
        boundaries: Boundaries,
        output: Output,
        isolation: Isolation,
    ) -> None:
        self.isolation = isolation
        self._said = False
        self._treatment = treatment
        self._fleet = fleet
        self._reader = reader
        self._clips = clips
        self._losses = losses
        self._options = options
        self._boundaries = boundaries
        self._output = output

    @part("transform")
    def treat(self, probe: OptimizerProbe, optimizer: Any, readings: Readings, early: bool = False) -> None:
        """Decide about the open step of an optimizer and change its gradients; see `Treatment.apply`."""
        if not self._treatment.active:
            return
        loss, scale = self._losses.loss, probe.loss_scale
        halt = self._treatment.apply(probe, optimizer, readings, loss=loss, loss_scale=scale, early=early)
        if self._treatment.together.apart and not self._said:
            self._said = True
            self._output.event({"kind": "error", "step": probe.step, "part": "ranks", "message": APART})
        if halt is not None:
            self._trip(probe, optimizer, halt)

    @part("before_clip_norm")
    def before_clip(self, watched: Sequence[torch.Tensor]) -> None:
        """Ours comes before the script's own clip, on all gradients of the optimizer, and once a step."""
        if not self._treatment.active or not watched:
            return
        keys = {id(parameter) for parameter in watched}
        for owner in self._fleet.probes:
            if owner.owns(keys):
                self._treat_early(owner)

    def _trip(self, probe: OptimizerProbe, optimizer: Any, halt: Halt) -> None:
        """A guard ends the training: the step is not made, and its frame is the last but for those of others."""
        if callable(halt.on_trip):
            halt.on_trip(halt.text)
            return
        self._treatment.stepped(probe)
        step = probe.step if halt.step is None else halt.step
        reason = halt.text if step == probe.step else ENDING
        if probe.is_open:
            self._boundaries.finish(probe, skipped=reason)
        else:
            self._boundaries.withhold(probe, optimizer, reason)
        self._output.halted(step, halt.text, stop=halt.on_trip == "stop")

    def _treat_early(self, owner: OptimizerProbe) -> None:
        optimizer = owner.reference()
        if optimizer is None or inside_backward() or self._treatment.decided(owner) or not self._clips.effective(owner):
            return
        if self._clips.still_scaled(owner, self._losses.meter):
            return
        parameters = owner.parameters(optimizer)
        held = [parameter for parameter in parameters if readable(parameter)]
        options = self._options.of_step(owner.step, spread=owner.spread)
        self._reader.before_clip(held, full=options.full, histogram=options.histogram, divide_by=None)
        places = {id(parameter): at for at, parameter in enumerate(parameters)}
        readings = [
            (reading, [places[id(held[at])] for at in positions])
            for reading, positions in self._reader.waiting_for(held)
        ]
        self.treat(owner, optimizer, readings, early=True)
        self._reader.touched(held)
