"""Everything that steps have left on a device, brought to the host in one copy that nobody waits for."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from gradmedic.host_copies import Floats, HostCopies, HostCopy

#: Elements up to which tensors are joined before they are converted.
_SMALL = 1 << 12


class Parcel:
    """Collects tensors, and brings all of them to the host in one copy.

    Tensors that are on the host already stay there. Those on several devices are gathered on the first one's.
    """

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._arrays: dict[int, Floats] = {}
        self._shapes: list[tuple[int, torch.Size]] = []
        self._copy: HostCopy | None = None

    def add(self, tensor: torch.Tensor | None) -> int:
        """Put a tensor in; returns its place, -1 for None."""
        if tensor is None:
            return -1
        self._tensors.append(tensor.detach())
        return len(self._tensors) - 1

    @torch.no_grad()
    def send(self, copies: HostCopies) -> None:
        """Begin the copy, behind what the current stream has to do; the tensors may change right afterwards."""
        tensors, self._tensors = self._tensors, []
        apart = [at for at, tensor in enumerate(tensors) if copies.needed(tensor)]
        if not apart:
            self._arrays = {at: tensor.numpy().astype(np.float64, copy=False) for at, tensor in enumerate(tensors)}
            return
        for at in set(range(len(tensors))).difference(apart):  # copied: they may change before the rest has arrived
            self._arrays[at] = tensors[at].numpy().astype(np.float64)
        order = sorted(apart, key=lambda at: _kind(tensors[at]))
        self._shapes = [(at, tensors[at].shape) for at in order]
        try:
            self._copy = copies.send(_joined([tensors[at] for at in order], tensors[apart[0]].device))
        except torch.OutOfMemoryError:  # no room for the vector: one by one needs none
            copies.waited()
            self._arrays.update((at, tensors[at].cpu().numpy().astype(np.float64)) for at in order)

    @property
    def arrived(self) -> bool:
        """Whether what was sent can be opened without waiting."""
        return self._copy is None or self._copy.arrived

    def open(self) -> None:
        """Take out what was sent; waits for it where it has not arrived."""
        if self._copy is None:
            return
        values, self._copy = self._copy.take(), None
        start = 0
        for at, shape in self._shapes:
            self._arrays[at] = values[start : start + shape.numel()].reshape(shape)
            start += shape.numel()

    def get(self, place: int) -> Floats | None:
        """Take a tensor's values out again, once the parcel is open; None for place -1."""
        return None if place < 0 else self._arrays[place]

    def number(self, place: int) -> float | None:
        """Take a 0-d tensor's value out."""
        value = self.get(place)
        return None if value is None else float(value.reshape(-1)[0])


def _kind(tensor: torch.Tensor) -> str:
    """Return what tensors have in common that are converted together: small ones their type, large ones nothing."""
    return str(tensor.dtype) if tensor.numel() <= _SMALL else f"{tensor.dtype} {id(tensor)}"


def _joined(tensors: list[torch.Tensor], home: torch.device) -> torch.Tensor:
    """Return all elements, neighbours of one kind at once, as one vector on the device `home`.

    In fp32 where the device has no fp64. Large tensors are written to their place without a temporary.
    """
    wide = torch.float32 if home.type == "mps" else torch.float64
    vector = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=wide, device=home)
    start = 0
    for _, group in itertools.groupby(tensors, key=_kind):
        pieces = []
        for tensor in group:
            _keep_until_read(tensor)
            pieces.append(tensor.to(home, non_blocking=True).reshape(-1))
        joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        vector.narrow(0, start, joined.numel()).copy_(joined)
        start += joined.numel()
    return vector


def _keep_until_read(tensor: torch.Tensor) -> None:
    """What was measured on a side stream is read on this one: its memory must not be given away before."""
    if tensor.device.type in ("cuda", "xpu"):
        tensor.record_stream(torch.get_device_module(tensor.device).current_stream(tensor.device))
