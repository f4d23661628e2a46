"""Whether the user's own clipping is in its place: after the backward pass, before the step, on unscaled gradients."""

from __future__ import annotations

import weakref
from typing import Any

from gradmedic.probes.losses import LossMeter
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.torch_hooks import ClipCall

#: Each kind of placement is reported this many times; rules need the first, people need no more.
_REPORTS = 3


class ClipWatch:
    """Follows clip calls through the cycle of backward passes and steps."""

    def __init__(self) -> None:
        self._gradients_left = False
        self._step_seen = False
        self._unscaled: weakref.WeakSet[Any] = weakref.WeakSet()
        self._reported: dict[tuple[str, str], int] = {}
        self._last_notes: tuple[str, str, float | None] | None = None

    def after_backward(self) -> None:
        """An outermost backward pass has ended."""
        self._gradients_left = True

    def stepped(self) -> None:
        """A watched optimizer has stepped."""
        self._step_seen = True
        self._unscaled = weakref.WeakSet()
        self._last_notes = None

    def dropped(self) -> None:
        """The gradients were erased without a step."""
        self._gradients_left = False
        self._last_notes = None

    def unscaled(self, optimizer: Any) -> None:
        """A scaler has unscaled an optimizer's gradients."""
        self._unscaled.add(optimizer)

    def effective(self, owner: OptimizerProbe | None) -> bool:
        """Whether a clip call now works on gradients that the next step will use."""
        return self._gradients_left and (owner is None or owner.freshness.backward_since_step)

    def still_scaled(self, owner: OptimizerProbe | None, losses: LossMeter) -> bool:
        """Whether the gradients still carry a loss scale."""
        if losses.scale is None:
            return False
        return (owner is None and not self._unscaled) or (owner is not None and owner.reference() not in self._unscaled)

    def classify(self, call: ClipCall, owner: OptimizerProbe | None, losses: LossMeter) -> dict[str, Any] | None:
        """Return the event to record for a clip call, if it is one of the first of its kind."""
        if not self.effective(owner):
            placement = self._out_of_place(call.api)
        elif self.still_scaled(owner, losses):
            placement = "before_unscale"
        else:
            placement = "ok"
        limit = call.max_norm if call.max_norm is not None else call.clip_value
        self._last_notes = (call.api, owner.name if owner else "", limit)
        return self._event(placement, *self._last_notes)

    def _out_of_place(self, api: str) -> str:
        # A clip at the head of the loop comes after a step as well, from the second round on: its first call tells.
        if not self._step_seen or ("before_backward", api) in self._reported:
            return "before_backward"
        return "after_step"

    def overtaken(self) -> dict[str, Any] | None:
        """A backward pass began although clipped gradients had not been used by a step."""
        if self._last_notes is None:
            return None
        return self._event("mid_accumulation", *self._last_notes)

    def _event(self, placement: str, api: str, owner: str, limit: float | None) -> dict[str, Any] | None:
        key = (placement, api)
        self._reported[key] = self._reported.get(key, 0) + 1
        if self._reported[key] > _REPORTS:
            return None
        event = {"kind": "clip_call", "api": api, "placement": placement, "optimizer": owner}
        return {**event, "max_norm": limit}
