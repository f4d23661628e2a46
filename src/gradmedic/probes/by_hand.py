"""Weights that are updated by hand: where no optimizer steps, the end of a backward pass is taken for the boundary.

At the end of each outermost backward pass the gradients are read; when the next one begins, changed weights tell that a
step was made in between, unchanged ones that gradients are being accumulated. The moment an optimizer steps, all this
stops for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.graph import walk
from gradmedic.probes.optimizer import OptimizerProbe, StepOptions
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.sentinels import Sentinel, remember
from gradmedic.roster import Roster
from gradmedic.stats.parts import has_memory
from gradmedic.types import Backend

NAME = "by_hand"


class _Leaves:
    """Stands for the optimizer: its parameters are the leaves that the loss reached."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": self.tensors}]


class HandUpdates:
    """Follows the leaves of a loss from backward pass to backward pass.

    Args:
        roster: names of the leaves.
        reader: where clip calls leave their readings.
        backend: which statistics backend.
        active: False where optimizers are given, so that no leaf is ever followed.
    """

    def __init__(self, roster: Roster, reader: GradientReader, backend: Backend, active: bool = True) -> None:
        self.active = active
        self._leaves: list[torch.Tensor] = []
        self._holder = _Leaves()
        self._gradients: list[Sentinel] = []
        self.probe = OptimizerProbe(self._holder, NAME, roster, reader, backend)

    @staticmethod
    def walk(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the leaves that a loss reaches."""
        return walk(roots).order

    @property
    def leaves(self) -> list[torch.Tensor]:
        """What the last loss reached."""
        return self._leaves

    def begin(self, options: StepOptions) -> None:
        """A backward pass has ended: read the gradients that it left."""
        if not all(map(_has_values, self._leaves)):
            self._leaves = []  # weights that were gathered for this pass from other ranks, and are gone again
        self._holder.tensors = self._leaves
        if self._leaves:
            self.probe.begin(self._holder, options)
        self.probe.freshness.after_backward()
        self._gradients = remember(sorted(self._leaves, key=torch.Tensor.numel))

    def finish_if_updated(self, leaves: list[torch.Tensor]) -> PendingFrame | None:
        """A backward pass begins, or all ends: return the step that was made since the last one, if any.

        Args:
            leaves: what the new loss reaches; empty at the end. Weights that were replaced by new tensors, instead of
                being changed in place, show themselves by not being among them.
        """
        known = {id(tensor) for tensor in self._holder.tensors}
        replaced = bool(leaves) and not any(id(leaf) in known for leaf in leaves)
        self._leaves = leaves or self._leaves
        updated = self.probe.is_open and (replaced or self.probe.weights_changed())
        pending = self.probe.finish() if updated else None
        # The moment of the update is not known, only that it lies behind us, like a zeroing: what was done to the
        # gradients is told by how the backward pass had left them.
        if replaced or not all(sentinel.untouched for sentinel in self._gradients):
            self.probe.freshness.zeroed()
        return pending

    def stop(self) -> None:
        """An optimizer has been seen: forget what is open, for good."""
        self.active = False
        self.probe.abandon()
        self._holder.tensors = []
        self._leaves = []
        self._gradients = []


def _has_values(leaf: torch.Tensor) -> bool:
    return leaf.layout is not torch.strided or not leaf.numel() or leaf.is_meta or has_memory(leaf)
