"""When to look for the origin of a lost value, and which step to say it of."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.frame import Frame
from gradmedic.isolation import Isolation, part
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.forward_origin import find_forward_origin
from gradmedic.probes.graph import nearest_parameter, walk
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.origin import Origin
from gradmedic.probes.withheld import WithheldSteps
from gradmedic.roster import Roster

#: A search reads saved values on the host; models that are trained one after the other, or in turns, have one each.
_MAX_SEARCHES = 8


class OriginWatch:
    """Looks once for each model behind a loss that is not finite, and behind the losses that follow a withheld step.

    Args:
        roster: names of the parameters.
        fleet: the optimizers that are followed.
        losses: knows which losses have overflowed under their scale only.
        on_host: whether values may be read here. To read one from a device would wait for it; there the origin is told
            from the gradients, later.
        isolation: what is switched off when it fails.
    """

    def __init__(self, roster: Roster, fleet: Fleet, losses: LossMeter, on_host: bool, isolation: Isolation) -> None:
        self.isolation = isolation
        self.withheld = WithheldSteps()
        self._roster = roster
        self._fleet = fleet
        self._losses = losses
        self._on_host = on_host
        self._found: Origin | None = None
        self._sought: list[weakref.ref[torch.Tensor]] = []

    @part("origin")
    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """A backward pass begins; its graph is still whole."""
        if not self._on_host:
            return
        self._look_behind_loss(roots)
        if self._found is None:
            self._found = self.withheld.look(roots, self._roster.name_of)

    def event(self, frame: Frame) -> dict[str, Any] | None:
        """Return the event to record before the frame of a step, if an origin was found before it."""
        if self._found is None:
            return None
        # With the frame's own time, so that a later reading of the record finds it before the frame.
        origin, self._found = self._found, None
        first = frame.step if origin.step is None else origin.step
        if origin.kind == "backward" and not self.withheld.confirmed(frame.skipped):
            return None
        return {**origin.to_event(), "step": first, "optimizer": frame.optimizer, "time": frame.time}

    def _look_behind_loss(self, roots: Sequence[torch.Tensor]) -> None:
        if self._found is not None or len(self._sought) == _MAX_SEARCHES:
            return
        if any(root.device.type != "cpu" for root in roots):
            return
        lost = [root for root in roots if not _finite(root.detach())]
        if all(self._losses.overflowed(root) for root in lost):
            return
        nearest = nearest_parameter(lost)
        if self._sought and (nearest is None or any(known() is nearest for known in self._sought)):
            return
        # Roots behind which no parameter is seen cannot be told apart: they get the first look, and no later one.
        self._sought.append(weakref.ref(lost[0] if nearest is None else nearest))
        unnamed = self._fleet.empty or (nearest is not None and self._roster.lookup(nearest) is None)
        if self._roster.discovering and unnamed:  # before a model's first step nobody has named it yet
            self._roster.identify(walk(roots).order)
        self._found = find_forward_origin(roots, self._roster.name_of)


def _finite(value: torch.Tensor) -> bool:
    """Whether a tensor on the CPU is finite; a loss is one number, for which Python is quicker than torch."""
    if value.dim() == 0 and value.is_floating_point():
        return math.isfinite(value.item())
    return bool(torch.isfinite(value).all())
