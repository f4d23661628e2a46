"""Whose loss it is: the backward passes since the last step, given to the optimizers that use them.

Optimizers that share one backward pass (AdamW beside Muon) share its loss; each has it for one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.isolation import Isolation, part
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.others import OtherOptimizers
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.threads import StepThreads

_NOTHING: tuple[torch.Tensor | None, torch.Tensor | None, int] = (None, None, 0)


class LossShare:
    """Adds up losses, and gives each to the step that it belongs to.

    Args:
        threads: which threads train.
        isolation: what is switched off when it fails.
    """

    def __init__(self, threads: StepThreads, isolation: Isolation) -> None:
        self.isolation = isolation
        self.meter = LossMeter()
        self.others = OtherOptimizers()
        self._threads = threads
        self._shared = _NOTHING
        self._sharers: set[str] = set()

    @property
    def loss(self) -> torch.Tensor | None:
        """The loss of the step that is being made, 0-d on its device; None if there was no backward call."""
        return self.meter.loss if self.meter.count else self._shared[0]

    def begin(self) -> None:
        """A backward pass begins: the first one since a step ends what the optimizers before it have shared."""
        if self.meter.count == 0:
            self._shared = _NOTHING

    @part("loss")
    def add(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """Count an outermost backward call; see `LossMeter.add`."""
        self.meter.add(roots, gradients)

    def give(self, pending: PendingFrame, evaluations: int | None = None) -> None:
        """Put the loss, its scale and the number of backward passes into the frame of a step.

        Args:
            pending: the step that was made.
            evaluations: how often its closure was called; None without one. A closure that was called once is a part
                of the step as any other: trainers put the last of several micro-batches into one, or nothing at all.
        """
        if self.meter.count:
            self._shared = (self.meter.loss, self.meter.scale, self.meter.count)
            self._sharers.clear()
        elif pending.frame.optimizer in self._sharers:
            self._shared = _NOTHING
        self._sharers.add(pending.frame.optimizer)
        pending.loss, pending.loss_scale, count = self._shared
        pending.frame.micro_batches = evaluations if evaluations is not None and evaluations > 1 else count
        self.meter.restart()

    def another_stepped(self, optimizer: Any) -> None:
        """An optimizer that is not watched has stepped, and may have used the loss that was there."""
        if self.others.stepped(optimizer) and not self._threads.foreign():
            self.meter.restart()
