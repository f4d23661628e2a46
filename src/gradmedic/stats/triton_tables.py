"""Tables through which kernels find many tensors: addresses, sizes, and which chunk is a piece of which tensor.

They are sent to the device without waiting for it, from pinned memory, and kept while sizes and addresses stay. Where
gradients are allocated anew (`zero_grad(set_to_none=True)`), the allocator mostly gives them their old addresses; where
it does not, the addresses alone are sent again.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: Elements of a chunk: few enough that a model is spread evenly over the device, and so many that what is left of each
#: chunk (80 bytes, 336 with bins) is small beside it.
CHUNK = 32_768
#: Chunks beyond one for each tensor, above which chunks are longer: what is left of 8,192 is 3 MiB with bins, and a
#: card of 132 processors goes over them in some twelve turns. The longest keep lanes to 1,024 additions in float32.
_CHUNKS, _LONGEST = 8_192, 1 << 20
#: Lists of tensors whose tables are kept.
_KEPT = 8
#: Addresses that are multiples of this allow the widest loads.
_ALIGNMENT = 16


_DTYPE = attrgetter("dtype")
#: Device and stream, types, numbers of elements, addresses.
_Key = tuple[tuple[torch.device, int], tuple[torch.dtype, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Launch:
    """Chunks of tensors of one type that one launch goes over.

    Attributes:
        dtype: type of the tensors.
        aligned: whether all of them begin at a multiple of 16 bytes.
        first, chunks: the launch's place among all chunks, and their number, >= 1.
        begin, end: the places of its tensors in the tables' `order`.
    """

    dtype: torch.dtype
    aligned: bool
    first: int
    chunks: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Tables:
    """What lies on the device, and what is launched.

    Attributes:
        addresses, numels: int64 [N], in the order of `order`.
        owners, starts: of each chunk its tensor (a place in `order`) and its first element, int32 and int64 [C].
        first_chunks: int64 [N + 1]: where each tensor's chunks begin.
        order: positions of the tensors in the input, grouped by type.
        positions: `order`, int64 [N] on the device, by which kernels write and read what is in the order of the input.
        launches: at most two for each type.
        chunks: C.
        length: elements of a chunk, but for the last one of each tensor.
        most: chunks of the tensor that has most.
    """

    addresses: Tensor
    numels: Tensor
    owners: Tensor
    starts: Tensor
    first_chunks: Tensor
    order: tuple[int, ...]
    positions: Tensor
    launches: tuple[Launch, ...]
    chunks: int
    length: int
    most: int


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
        # By `map` over methods: of thousands of tensors, asking each takes longer than the kernel.
        dtypes, numels = tuple(map(_DTYPE, tensors)), tuple(map(Tensor.numel, tensors))
        addresses = tuple(map(Tensor.data_ptr, tensors))
        key = (place_of(tensors[0].device), dtypes, numels, addresses)
        tables = self._known.get(key)
        if tables is None:
            tables = self._made(key, tensors[0].device)
            self.sent += 1
            self._known[key] = tables
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return tables

    def _made(self, key: _Key, device: torch.device) -> Tables:
        addresses = key[3]
        aligned = _aligned(addresses)
        for known, tables in self._known.items():
            if known[:3] == key[:3] and _aligned(known[3]) == aligned:
                return _moved(tables, addresses, device)
        return build(tuple(zip(key[1], aligned, key[2], strict=True)), addresses, device)


def _aligned(addresses: tuple[int, ...]) -> list[bool]:
    return [address % _ALIGNMENT == 0 for address in addresses]


def _moved(tables: Tables, addresses: tuple[int, ...], device: torch.device) -> Tables:
    """Return the tables of tensors of the same types and sizes that lie elsewhere."""
    return replace(tables, addresses=send(np.array([addresses[at] for at in tables.order], dtype=np.int64), device))


def place_of(device: torch.device) -> tuple[torch.device, int]:
    """Return a device and its current stream, to which what was sent belongs."""
    return device, _stream(device)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the current one, which is where kernels are launched."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    return torch.xpu.device(device) if device.type == "xpu" else nullcontext()


def _stream(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.current_stream(device).cuda_stream)
    return int(torch.xpu.current_stream(device).sycl_queue) if device.type == "xpu" else 0


def build(kinds: tuple[tuple[torch.dtype, bool, int], ...], addresses: tuple[int, ...], device: torch.device) -> Tables:
    """Return the tables of tensors of these types, alignments and numbers of elements, at these addresses."""
    order = sorted(range(len(kinds)), key=lambda at: (str(kinds[at][0]), kinds[at][1], at))
    numels = np.array([kinds[at][2] for at in order], dtype=np.int64)
    length = _length(numels)
    chunks = -(-numels // length)
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(chunks)])
    owners = np.repeat(np.arange(len(order), dtype=np.int32), chunks)
    starts = (np.arange(int(first[-1]), dtype=np.int64) - first[owners]) * length
    return Tables(
        send(np.array([addresses[at] for at in order], dtype=np.int64), device),
        send(numels, device),
        send(owners, device),
        send(starts, device),
        send(first, device),
        tuple(order),
        send(np.array(order, dtype=np.int64), device),
        _launches([kinds[at][:2] for at in order], first),
        int(first[-1]),
        length,
        int(chunks.max(initial=0)),
    )


def _length(numels: npt.NDArray[np.int64]) -> int:
    """Return the elements of a chunk, a power of two, for tensors of so many elements."""
    length = CHUNK
    while length < _LONGEST and int((-(-numels // length)).sum()) > _CHUNKS + len(numels):
        length *= 2
    return length


def _launches(kinds: list[tuple[torch.dtype, bool]], first: npt.NDArray[np.int64]) -> tuple[Launch, ...]:
    edges = [0, *(at for at in range(1, len(kinds)) if kinds[at] != kinds[at - 1]), len(kinds)]
    found = []
    for begin, end in pairwise(edges):
        count = int(first[end] - first[begin])
        if count:
            found.append(Launch(*kinds[begin], int(first[begin]), count, begin, end))
    return tuple(found)


def send(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return the values on the device without waiting for it: the allocator of pinned memory keeps them till then."""
    host = torch.from_numpy(values)
    if device.type == "cpu":
        return host
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
