"""Gradients that backward passes have left and no step has used yet: have they been erased meanwhile?

A bad batch that is left out, a trial pass before the loop: its gradients are zeroed, and its loss belongs to no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from gradmedic.probes.sentinels import Sentinel, remember
from gradmedic.stats.mesh_layout import local_of


class Leftovers:
    """Follows the gradients of the last backward pass until a step uses them."""

    def __init__(self) -> None:
        self._sentinels: list[Sentinel] = []

    def left(self, groups: Iterable[Iterable[torch.Tensor]]) -> None:
        """A backward pass has ended.

        Args:
            groups: the parameters of each optimizer, smallest first.
        """
        self._sentinels = [sentinel for group in groups for sentinel in remember(group)]

    def forget(self) -> None:
        """They cannot be looked at, or are known to be gone."""
        self._sentinels = []

    def erased(self, everything: Callable[[], Iterable[torch.Tensor]]) -> bool:
        """Whether there were gradients, and all of them are gone or have been zeroed since.

        Args:
            everything: returns all parameters; looked through only if the few that are remembered say so.
        """
        if not self._sentinels or not all(sentinel.erased for sentinel in self._sentinels):
            return False
        return all(_is_empty(parameter.grad) for parameter in everything())


def _is_empty(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return True
    gradient = local_of(gradient)
    return gradient.layout == torch.strided and gradient.device.type == "cpu" and not bool(gradient.any())
