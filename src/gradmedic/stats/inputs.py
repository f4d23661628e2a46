"""What may be measured, and how each kind of tensor is brought to plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gradmedic.errors import InputError

Tensors = Tensor | Iterable[Tensor] | Mapping[str, Tensor]

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
#: Packed formats, of which torch cannot read single elements.
_PACKED = tuple(getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name))


def materialise(tensors: Tensors) -> tuple[tuple[str, ...] | None, list[Tensor]]:
    """Return the names, if there are any, and the tensors as a list of our own; a generator is read once."""
    if isinstance(tensors, Tensor):
        return None, [tensors]
    if isinstance(tensors, Mapping):
        return tuple(map(str, tensors)), list(tensors.values())
    if isinstance(tensors, Iterable):
        return None, list(tensors)
    raise InputError(
        f"expected a tensor, an iterable of tensors or a mapping of names to tensors, got {type(tensors).__name__}; "
        "pass for example [p.grad for p in model.parameters() if p.grad is not None]"
    )


def label(names: tuple[str, ...] | None, index: int) -> str:
    """Return how errors call the tensor at that index."""
    return f"tensor {index}" if names is None else f"tensor {names[index]!r}"


def unwrap(tensor: Any, called: str) -> Tensor:
    """Return the detached plain tensor, of any layout, behind a tensor or a subclass.

    Raises:
        InputError: it is no tensor, has no data, or is not of a floating or complex type.
    """
    if not isinstance(tensor, Tensor):
        hint = "leave out parameters whose .grad is None" if tensor is None else "pass tensors only"
        raise InputError(f"expected {called} to be a tensor, got {type(tensor).__name__}; {hint}")
    plain = _plain(tensor, called)
    if plain.device.type == "meta":
        raise InputError(f"expected {called} to have data, got one on the meta device; leave it out")
    if not (plain.is_floating_point() or plain.is_complex()) or plain.dtype in _PACKED:
        raise InputError(
            f"expected {called} to be of a floating or complex type, got {plain.dtype}; "
            "leave it out or convert it with .float()"
        )
    return plain


def all_plain(items: Sequence[Any]) -> bool:
    """Whether each item is what `unwrap` and `stored` would make of it: asked once of each kind, not of each tensor."""
    if set(map(type, items)) != {Tensor} or any([item.requires_grad for item in items]):
        return False
    if {item.layout for item in items} != {torch.strided}:
        return False
    if {device.type for device in {item.device for item in items}} & {"meta", "mps"}:
        return False
    types = {item.dtype for item in items}
    return all((dtype.is_floating_point or dtype.is_complex) and dtype not in _PACKED for dtype in types)


def _plain(tensor: Tensor, called: str) -> Tensor:
    if type(tensor) is Tensor and not tensor.requires_grad:
        return tensor
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor.detach()
    subclass: Any = tensor.detach()
    if hasattr(subclass, "to_local"):  # DTensor: the shard of this process
        return _plain(subclass.to_local(), called)
    if hasattr(subclass, "trigger_wait"):  # result of a functional collective that may still be under way
        return _plain(subclass.trigger_wait(), called)
    if is_traceable_wrapper_subclass(subclass):
        raise InputError(
            f"expected {called} to hold its own data, got {type(tensor).__name__}, which wraps other tensors; "
            "pass those instead"
        )
    plain: Tensor = subclass.as_subclass(Tensor)
    return plain


def stored(tensor: Tensor, called: str) -> tuple[Tensor, int]:
    """Return the stored elements as a strided tensor, and how many zeros of the dense form are not stored.

    Duplicate coordinates are added up first. On a CUDA device, torch waits for the device to do that.
    """
    if tensor.device.type == "mps":  # has no float64
        tensor = tensor.cpu()
    if tensor.layout == torch.strided:
        return tensor, 0
    if tensor.layout == torch.sparse_coo:
        values = tensor.coalesce().values()
    elif tensor.layout in _COMPRESSED:
        values = tensor.values()
    elif tensor.is_mkldnn:
        values = tensor.to_dense()
    else:
        raise InputError(f"expected {called} to be dense or sparse, got layout {tensor.layout}; pass a dense copy")
    return values.detach(), tensor.numel() - values.numel()


def flat_view(tensor: Tensor) -> Tensor | None:
    """Return the elements in the order in which they lie in memory, as a 1-D view; None where they have gaps.

    Statistics do not depend on the order, so that transposed and channels-last tensors need no copy.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride != expected:
            return None
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,))
