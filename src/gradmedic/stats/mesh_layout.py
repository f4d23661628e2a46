"""Where the elements of a distributed tensor lie: which of them are here, and which ranks hold the others.

A `DTensor` is a plain tensor on each rank of a mesh, with one placement for each dimension of the mesh: sharded (every
rank holds a part), replicated (every rank holds the same) or partial (the ranks' values have yet to be added up).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Kinds of tensors, and whether they are DTensors: asked several times for each tensor and step.
_kinds: dict[type[Any], bool] = {Tensor: False, torch.nn.Parameter: False}


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """How one tensor lies on a mesh.

    Attributes:
        mesh: the device mesh.
        counts_here: whether this rank's part counts in a sum over all ranks of the mesh. Along a dimension on which the
            tensor is replicated only the first rank's does, so that every logical element counts once.
        shape: of the whole tensor.
        placements: one for each dimension of the mesh.
    """

    mesh: Any
    counts_here: bool
    shape: torch.Size
    placements: tuple[Any, ...]

    def slice_along(self, axis: int) -> slice:
        """Return which part of an axis of the tensor lies here."""
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        shape, offset = compute_local_shape_and_global_offset(self.shape, self.mesh, self.placements)
        return slice(offset[axis], offset[axis] + shape[axis])


def is_distributed(tensor: Any) -> bool:
    """Whether a tensor is a DTensor; nothing is imported for tensors that are none."""
    return _is_kind_of_many(type(tensor))


def any_distributed(tensors: Iterable[Any]) -> bool:
    """Whether any of the tensors is a DTensor; asked of each type, not of each tensor."""
    return bool(_distributed_kinds(tensors))


def _is_kind_of_many(kind: type[Any]) -> bool:
    known = _kinds.get(kind)
    if known is None:
        known = _kinds[kind] = hasattr(kind, "device_mesh")
    return known


def layout_of(tensor: Any) -> MeshLayout | None:
    """Return how a tensor lies on its mesh; None for a plain one. The same on all ranks but for `counts_here`."""
    if not is_distributed(tensor):
        return None
    mesh, placements = tensor.device_mesh, tensor.placements
    first = all(
        _is_shard(placement) or mesh.get_local_rank(dimension) == 0 for dimension, placement in enumerate(placements)
    )
    return MeshLayout(mesh, first, tensor.shape, tuple(placements))


def local_of(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that lies here, itself when it is a plain one; it shares memory, and has no graph."""
    if not is_distributed(tensor):
        return tensor
    # `to_local()` makes a view of this and a node of the graph, or a context against it; asked for each tensor several
    # times a step, that is most of the time of a step of many tensors.
    local = getattr(tensor, "_local_tensor", None)
    if type(local) is not Tensor or local.requires_grad:
        with torch.no_grad():
            distributed: Any = tensor
            local = distributed.to_local()
    waiting: Any = local
    ready: Tensor = waiting.wait() if type(local) is not Tensor and hasattr(waiting, "trigger_wait") else waiting
    return ready


def locals_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the part that lies here of each of many tensors; see `local_of`."""
    spread = _distributed_kinds(tensors)
    if not spread:
        return list(tensors)
    found = [getattr(each, "_local_tensor", None) if type(each) in spread else each for each in tensors]
    ready: list[Tensor] = [each for each in found if type(each) is Tensor and not each.requires_grad]
    return ready if len(ready) == len(tensors) else [local_of(tensor) for tensor in tensors]


def any_partial(tensors: Sequence[Any]) -> bool:
    """Whether the values of any DTensor among the tensors have yet to be added up; asked of each kind of placement."""
    spread = _distributed_kinds(tensors)
    if not spread:
        return False
    kinds = {type(placement): placement for each in tensors if type(each) in spread for placement in each.placements}
    return any(placement.is_partial() for placement in kinds.values())


def _distributed_kinds(tensors: Iterable[Any]) -> set[type[Any]]:
    return set(filter(_is_kind_of_many, set(map(type, tensors))))


def added_up(tensor: Tensor) -> Tensor:
    """Return a tensor whose partial values have been added up; itself where there are none.

    One collective for each such tensor: norms are no sums of the norms of addends.
    """
    if not is_distributed(tensor):
        return tensor
    distributed: Any = tensor
    if not any(placement.is_partial() for placement in distributed.placements):
        return tensor
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if placement.is_partial() else placement for placement in distributed.placements]
    with torch.no_grad():
        result: Tensor = distributed.redistribute(placements=placements)
    return result


def _is_shard(placement: Any) -> bool:
    # `_StridedShard`, which FSDP puts on top of tensor parallelism, is a kind of its own from torch 2.9 on.
    return bool(placement.is_shard()) or type(placement).__name__ == "_StridedShard"
