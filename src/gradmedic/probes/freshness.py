"""Whether gradients were zeroed between steps, from the version counters of a few of them.

After a step each optimizer's smallest gradients are remembered by identity and version. Zeroing in place changes the
version, `set_to_none` the identity; if neither has happened when the next backward pass begins, and none happens before
any later one, the next step uses gradients that were added onto used ones. Nothing is computed and nothing is read
from a device. (A gradient of another network may be polluted in between, as in a GAN; its owner zeroes it before its
own backward pass, which clears the mark.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradmedic.probes.sentinels import Sentinel, remember


class Freshness:
    """Follows the gradients of one optimizer from step to step."""

    def __init__(self) -> None:
        self._sentinels: list[Sentinel] = []
        self._stale = False
        self._backward_since_step = False

    def stepped(self, parameters: Iterable[torch.Tensor]) -> None:
        """The optimizer has stepped: its gradients are used from now on; the parameters come smallest first."""
        self._sentinels = remember(parameters)
        self._stale = bool(self._sentinels)
        self._backward_since_step = False

    def before_backward(self) -> None:
        """An outermost backward pass begins: were the used gradients zeroed?"""
        if self._stale and not all(sentinel.untouched for sentinel in self._sentinels):
            self._stale = False

    def after_backward(self) -> None:
        """It has ended: accumulation has changed the versions, which is no zeroing."""
        self._backward_since_step = True
        for sentinel in self._sentinels:
            sentinel.renew()

    def unseen(self) -> None:
        """A backward pass whose gradients could not be looked at: nothing is claimed of the next step."""
        self._stale = False
        self._backward_since_step = True

    def zeroed(self) -> None:
        """The gradients are known to have been zeroed since the last step."""
        self._stale = False

    def erased(self) -> None:
        """What the backward passes since the last step had left is gone."""
        self._stale = self._backward_since_step = False

    @property
    def stale(self) -> bool:
        """Whether the step about to be made uses gradients that a former step has used already."""
        return self._stale and self._backward_since_step

    @property
    def backward_since_step(self) -> bool:
        """Whether a backward pass has run since the last step."""
        return self._backward_since_step
