"""Sums and maxima over the ranks of a mesh, or of a process group that the user names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Collective:
    """Adds up, and takes the largest of, what the ranks of a group hold; every rank then has the same bits.

    Args:
        groups: process groups whose reductions, one after the other, span all the ranks.

    Attributes:
        calls: number of collectives so far.
        size: number of ranks.
    """

    def __init__(self, groups: list[Any]) -> None:
        from torch import distributed

        self._groups = groups
        self._distributed: Any = distributed
        self.calls = 0
        self.size = 1
        for group in groups:
            self.size *= distributed.get_world_size(group)

    @classmethod
    def of_mesh(cls, mesh: Any) -> Collective:
        """Return the collective over all ranks of a device mesh.

        A mesh of several dimensions that is the whole world takes one reduction; a part of it one for each dimension.
        """
        from torch import distributed

        if mesh.ndim == 1:
            return cls([mesh.get_group()])
        if mesh.size() == distributed.get_world_size():
            return cls([distributed.group.WORLD])
        return cls([mesh.get_group(dimension) for dimension in range(mesh.ndim)])

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks; values [...] of one shape and type on every rank."""
        return self._reduce(values, self._distributed.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """Return the largest over all ranks."""
        return self._reduce(values, self._distributed.ReduceOp.MAX)

    def _reduce(self, values: Tensor, operation: Any) -> Tensor:
        for group in self._groups:
            moved = values.to(_device_for(values.device, group))
            # A copy: the caller's tensor may be part of a table that is still needed.
            result = moved.contiguous() if moved is not values else values.contiguous().clone()
            self._distributed.all_reduce(result, op=operation, group=group)
            self.calls += 1
            values = result.to(values.device)
        return values


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of a 0-d value over all ranks of the job; itself where there is only one.

    A NaN or an infinity on one rank is one on all. Every rank must call this at the same time.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return value
    world = Collective([distributed.group.WORLD])
    return (world.sum(value.double().reshape(1)) / world.size).reshape(())


def _device_for(device: torch.device, group: Any) -> torch.device:
    """Return where a group can reduce: gradients that were moved to the CPU may belong to a group of GPUs."""
    kinds = [kind.type for kind in getattr(group, "_device_types", [])]
    if not kinds or device.type in kinds:
        return device
    if kinds[0] == "cpu":
        return torch.device("cpu")
    return torch.device(kinds[0], torch.accelerator.current_device_index())
