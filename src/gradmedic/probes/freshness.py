"""Whether gradients were zeroed between steps, from the version counters of a few of them.

After a step each optimizer's smallest gradients are remembered by identity and version. Zeroing in place changes the
version, `set_to_none` the identity; if neither has happened when the next backward pass begins, and none happens before
any later one, the next step uses gradients that were added onto used ones. Nothing is computed and nothing is read
from a device. (A gradient of another network may be polluted in between, as in a GAN; its owner zeroes it before its
own backward pass, which clears the mark.)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch

_SENTINELS = 3


@dataclass(slots=True)
class _Sentinel:
    parameter: weakref.ref[torch.Tensor]
    gradient: int
    version: int


class Freshness:
    """Follows the gradients of one optimizer from step to step."""

    def __init__(self) -> None:
        self._sentinels: list[_Sentinel] = []
        self._stale = False
        self._backward_since_step = False

    def stepped(self, parameters: Iterable[torch.Tensor]) -> None:
        """The optimizer has stepped: its gradients are used from now on; the parameters come smallest first."""
        present = (parameter for parameter in parameters if parameter.grad is not None and not parameter.grad.is_sparse)
        self._sentinels = [
            _Sentinel(weakref.ref(parameter), id(parameter.grad), _version(parameter.grad))
            for parameter in islice(present, _SENTINELS)
        ]
        self._stale = bool(self._sentinels)
        self._backward_since_step = False

    def before_backward(self) -> None:
        """An outermost backward pass begins: were the used gradients zeroed?"""
        if self._stale and not all(self._untouched(sentinel) for sentinel in self._sentinels):
            self._stale = False

    def after_backward(self) -> None:
        """It has ended: accumulation has changed the versions, which is no zeroing."""
        self._backward_since_step = True
        for sentinel in self._sentinels:
            parameter = sentinel.parameter()
            if parameter is not None and parameter.grad is not None:
                sentinel.gradient, sentinel.version = id(parameter.grad), _version(parameter.grad)

    def unseen(self) -> None:
        """A backward pass whose gradients could not be looked at: nothing is claimed of the next step."""
        self._stale = False
        self._backward_since_step = True

    @property
    def stale(self) -> bool:
        """Whether the step about to be made uses gradients that a former step has used already."""
        return self._stale and self._backward_since_step

    @property
    def backward_since_step(self) -> bool:
        """Whether a backward pass has run since the last step."""
        return self._backward_since_step

    @staticmethod
    def _untouched(sentinel: _Sentinel) -> bool:
        parameter = sentinel.parameter()
        if parameter is None or parameter.grad is None:
            return False
        return id(parameter.grad) == sentinel.gradient and _version(parameter.grad) == sentinel.version


def _version(tensor: torch.Tensor | None) -> int:
    try:
        return int(tensor._version) if tensor is not None else -1
    except RuntimeError:  # inference tensors keep no version
        return -1
