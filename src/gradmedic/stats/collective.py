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


#: By mesh or group: looked up once. They are few, and live as long as the process groups that they were made in.
_collectives: dict[Any, Collective] = {}
_made_in: list[Any] = []


def collective_of(mesh: Any) -> Collective:
    """Return the collective over a device mesh, or over a tuple of process groups; the same one each time."""
    from torch import distributed

    world = distributed.group.WORLD
    if not _made_in or _made_in[0] is not world:  # the job has begun anew in this process: its meshes are equal ones
        _collectives.clear()
        _made_in[:] = [world]
    if mesh not in _collectives:
        _collectives[mesh] = Collective(list(mesh)) if isinstance(mesh, tuple) else Collective.of_mesh(mesh)
    return _collectives[mesh]


def mean_over_ranks(
    value: Tensor | None, groups: tuple[Any, ...] | None = None, *, device: torch.device | None = None
) -> Tensor | None:
    """Return the mean of a 0-d value over the ranks that have one; itself where there is only one rank.

    A NaN or an infinity on one rank is one on all. Every rank must call this at the same time, also one that has no
    value (a pipeline's first stage has no loss). None where nobody has one, which only a rank without a value, and no
    other, waits for the device to know.

    Args:
        value: 0-d, or None.
        groups: the ranks, as process groups one after the other; None: all of the job.
        device: where the others' are wanted, where there is no value here.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return value
    mine = torch.zeros(2, dtype=torch.float64, device=device)
    if value is not None:
        mine = torch.stack([value.double().reshape(()), value.new_ones((), dtype=torch.float64)])
    joined = collective_of(groups or (distributed.group.WORLD,)).sum(mine)
    if value is None and not bool(joined[1]):
        return None
    return joined[0] / joined[1]


def _device_for(device: torch.device, group: Any) -> torch.device:
    """Return where a group can reduce: gradients that were moved to the CPU may belong to a group of GPUs."""
    kinds = [kind.type for kind in getattr(group, "_device_types", [])]
    if not kinds or device.type in kinds:
        return device
    if kinds[0] == "cpu":
        return torch.device("cpu")
    return torch.device(kinds[0], torch.accelerator.current_device_index())
