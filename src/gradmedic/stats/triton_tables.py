"""Tables through which kernels find many tensors: addresses, sizes, and which chunk is a piece of which tensor.

They are sent to the device without waiting for it, from pinned memory, and kept while sizes and addresses stay. Where
gradients are allocated anew (`zero_grad(set_to_none=True)`), the allocator mostly gives them their old addresses; where
it does not, the addresses alone are sent again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: Elements of a chunk: few enough that a large tensor is spread over the device, and so many that what is left of each
#: chunk (80 bytes, 336 with bins) is small beside it.
BLOCK, BLOCKS = 4096, 16
CHUNK = BLOCK * BLOCKS
#: Lists of tensors whose tables are kept.
_KEPT = 8
#: Addresses that are multiples of this allow the widest loads.
_ALIGNMENT = 16


_Key = tuple[tuple[torch.device, int], tuple[tuple[torch.dtype, bool, int], ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Launch:
    """Chunks of tensors of one type that one launch goes over.

    Attributes:
        dtype: type of the tensors.
        aligned: whether all of them begin at a multiple of 16 bytes.
        first, chunks: the launch's place among all chunks, and their number, >= 1.
    """

    dtype: torch.dtype
    aligned: bool
    first: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Tables:
    """What lies on the device, and what is launched.

    Attributes:
        addresses, numels: int64 [N], in the order of `order`.
        owners, starts: of each chunk its tensor (a place in `order`) and its first element, int32 and int64 [C].
        first_chunks: int64 [N + 1]: where each tensor's chunks begin.
        order: positions of the tensors in the input, grouped by type.
        inverse: place in `order` of each tensor of the input, int64 [N] on the device; None where the order is that of
            the input.
        launches: at most two for each type.
        chunks: C.
    """

    addresses: Tensor
    numels: Tensor
    owners: Tensor
    starts: Tensor
    first_chunks: Tensor
    order: tuple[int, ...]
    inverse: Tensor | None
    launches: tuple[Launch, ...]
    chunks: int


class TableCache:
    """Keeps the tables of the lists of tensors that were asked for last: gradients, weights, …

    Tables belong to the stream on which they were sent, for nothing orders another one after them.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, Tables] = OrderedDict()
        #: How often anything was sent to the device; for tests and for those who count.
        self.sent = 0

    def of(self, tensors: list[Tensor]) -> Tables:
        """Return the tables of N >= 1 contiguous tensors on one device; no host synchronisation."""
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        kinds = tuple(
            (tensor.dtype, address % _ALIGNMENT == 0, tensor.numel())
            for tensor, address in zip(tensors, addresses, strict=True)
        )
        device = tensors[0].device
        place = (device, _stream(device))
        key = (place, kinds, addresses)
        tables = self._known.get(key)
        if tables is None:
            alike = next((each for known, each in self._known.items() if known[:2] == key[:2]), None)
            tables = build(kinds, addresses, device) if alike is None else _moved(alike, addresses, device)
            self.sent += 1
            self._known[key] = tables
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return tables


def _moved(tables: Tables, addresses: tuple[int, ...], device: torch.device) -> Tables:
    """Return the tables of tensors of the same types and sizes that lie elsewhere."""
    return replace(tables, addresses=_send(np.array([addresses[at] for at in tables.order], dtype=np.int64), device))


def _stream(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.current_stream(device).cuda_stream)
    return int(torch.xpu.current_stream(device).sycl_queue) if device.type == "xpu" else 0


def build(kinds: tuple[tuple[torch.dtype, bool, int], ...], addresses: tuple[int, ...], device: torch.device) -> Tables:
    """Return the tables of tensors of these types, alignments and numbers of elements, at these addresses."""
    order = sorted(range(len(kinds)), key=lambda at: (str(kinds[at][0]), kinds[at][1], at))
    numels = np.array([kinds[at][2] for at in order], dtype=np.int64)
    chunks = -(-numels // CHUNK)
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(chunks)])
    owners = np.repeat(np.arange(len(order), dtype=np.int32), chunks)
    starts = (np.arange(int(first[-1]), dtype=np.int64) - first[owners]) * CHUNK
    inverse = np.empty(len(order), dtype=np.int64)
    inverse[order] = np.arange(len(order))
    return Tables(
        _send(np.array([addresses[at] for at in order], dtype=np.int64), device),
        _send(numels, device),
        _send(owners, device),
        _send(starts, device),
        _send(first, device),
        tuple(order),
        None if order == list(range(len(order))) else _send(inverse, device),
        _launches([kinds[at][:2] for at in order], first),
        int(first[-1]),
    )


def _launches(kinds: list[tuple[torch.dtype, bool]], first: npt.NDArray[np.int64]) -> tuple[Launch, ...]:
    edges = [0, *(at for at in range(1, len(kinds)) if kinds[at] != kinds[at - 1]), len(kinds)]
    found = []
    for begin, end in pairwise(edges):
        count = int(first[end] - first[begin])
        if count:
            found.append(Launch(*kinds[begin], int(first[begin]), count))
    return tuple(found)


def _send(values: npt.NDArray[np.int64] | npt.NDArray[np.int32], device: torch.device) -> Tensor:
    """Return the values on the device without waiting for it: the allocator of pinned memory keeps them till then."""
    host = torch.from_numpy(values)
    if device.type == "cpu":
        return host
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
