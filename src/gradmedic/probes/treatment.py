"""Carrying out what a transform decides, at the step boundary."""

from __future__ import annotations

from typing import Any

import torch

from gradmedic.clip.apply import scale_gradients
from gradmedic.clip.base import Decision, GradientSummary, Transform
from gradmedic.probes.gradients import Clip, Reading, current_norms
from gradmedic.probes.optimizer import OptimizerProbe

Readings = list[tuple[Reading, list[int]]]


class Treatment:
    """Keeps a transform's state for each optimizer and applies its decisions.

    With several optimizers each is treated by itself: their steps are made at different moments.

    Args:
        transform: what to do to gradients; None: nothing.
    """

    def __init__(self, transform: Transform | None) -> None:
        self.states: dict[str, Any] = {}
        self._transform = transform

    def apply(self, probe: OptimizerProbe, readings: Readings) -> None:
        """Decide about the open step of an optimizer, change its gradients, and note it in the readings."""
        if self._transform is None or not readings:
            return
        if probe.name not in self.states:
            self.states[probe.name] = self._transform.init(probe.names)
        decision, state = self._transform.update(_summary(probe, readings), self.states[probe.name])
        self.states[probe.name] = state
        scale_gradients(probe.open_gradients, decision.scale)
        for reading, _ in readings:
            reading.clips.append(_as_clip(decision))


def _summary(probe: OptimizerProbe, readings: Readings) -> GradientSummary:
    vectors = [current_norms(reading) for reading, _ in readings]
    home = vectors[0].device
    nonfinite = [reading.nonfinite().to(home) for reading, _ in readings]
    norm = torch.cat([vector.to(home) for vector in vectors])
    return GradientSummary(probe.names, norm, torch.stack(nonfinite).sum(), probe.step)


def _as_clip(decision: Decision) -> Clip:
    return Clip(None, max_norm=decision.threshold, scale=decision.scale, clipped=decision.clipped.double())
