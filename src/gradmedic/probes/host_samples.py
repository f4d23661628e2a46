"""Sampled coordinates of tensors in a CPU's memory, read and compared by the compiled kernel in one call each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradmedic.stats import native

Piece = Callable[[Any, int], torch.Tensor]


class HostSamples:
    """Reads the same coordinates of a fixed list of tensors again and again.

    Args:
        numels: number of elements of each tensor, N.
        strides: int64 [4, N]: offset, step, count and run of its coordinates, as `gradmedic.probes.samples.Stride`.
        starts: where each tensor's values begin among all of them, int64 [N].
        wide: whether any of the tensors is float64; everything is then read as float64, else as float32.
    """

    def __init__(
        self, numels: Sequence[int], strides: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], *, wide: bool
    ) -> None:
        self._geometry = np.ascontiguousarray(np.vstack([np.asarray(numels, dtype=np.int64), strides, starts]))
        self._total = int((strides[2] * strides[3]).sum())
        self._dtype = torch.float64 if wide else torch.float32

    @staticmethod
    def able(tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the kernel is there, and most of the tensors can be read by it."""
        return native.samples_available() and all(
            tensor.device.type == "cpu" and tensor.dtype in native.DTYPES for tensor in tensors
        )

    def read(self, tensors: Sequence[torch.Tensor | None], piece: Piece) -> torch.Tensor | None:
        """Return the values, [total], on the CPU; None where the tensors are not those that were expected.

        Args:
            tensors: the tensors, or their gradients.
            piece: returns the coordinates of a tensor that the kernel cannot read in place, by its position.
        """
        values = torch.empty(self._total, dtype=self._dtype, device="cpu")
        for at in native.gather(list(tensors), self._geometry, values):
            tensor = tensors[at]
            if tensor is not None and (tensor.device.type != "cpu" or tensor.numel() != self._geometry[0, at]):
                return None
            coordinates = piece(tensor, at).reshape(-1)
            start = int(self._geometry[5, at])
            values[start : start + coordinates.numel()] = coordinates.real if coordinates.is_complex() else coordinates
        return values

    def fits(self, *readings: torch.Tensor) -> bool:
        """Whether these are readings of these samples: a replaced tensor may have been read in another way."""
        return all(
            reading.dtype == self._dtype and reading.numel() == self._total and reading.device.type == "cpu"
            for reading in readings
        )

    def compare(self, one: torch.Tensor, other: torch.Tensor) -> npt.NDArray[np.float64]:
        """Return float64 [5, N]: squared differences, number of equal values, dot product, squares of each reading."""
        return native.compare(one, other, self._geometry)
