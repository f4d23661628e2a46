"""A few gradients remembered by identity and version counter, which tell later whether anyone has touched them.

Zeroing in place changes the version, `set_to_none` the identity. Nothing is computed and nothing is read from a device;
parameters are held weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch

from gradmedic.stats.mesh_layout import local_of

_SENTINELS = 3


@dataclass(slots=True)
class Sentinel:
    """One parameter's gradient as it was."""

    parameter: weakref.ref[torch.Tensor]
    gradient: int
    version: int

    @property
    def untouched(self) -> bool:
        """Whether the gradient is still the same, unchanged."""
        parameter = self.parameter()
        if parameter is None or parameter.grad is None:
            return False
        return id(parameter.grad) == self.gradient and version_of(parameter.grad) == self.version

    @property
    def erased(self) -> bool:
        """Whether the gradient is gone, or has been changed since and is zero (a host read, made on the CPU only)."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None:
            return True
        if gradient.device.type != "cpu" or self.untouched:
            return False
        return not bool(local_of(gradient).any())

    def renew(self) -> None:
        """Remember the gradient as it is now."""
        parameter = self.parameter()
        if parameter is not None and parameter.grad is not None:
            self.gradient, self.version = id(parameter.grad), version_of(parameter.grad)


def remember(parameters: Iterable[torch.Tensor], count: int = _SENTINELS) -> list[Sentinel]:
    """Return sentinels of the first dense gradients among those of the parameters."""
    present = (each for each in parameters if each.grad is not None and not each.grad.is_sparse)
    return [Sentinel(weakref.ref(each), id(each.grad), version_of(each.grad)) for each in islice(present, count)]


def version_of(gradient: torch.Tensor | None) -> int:
    """Return a gradient's version counter; -1 without one."""
    try:
        return int(local_of(gradient)._version) if gradient is not None else -1
    except RuntimeError:  # inference tensors keep no version
        return -1
