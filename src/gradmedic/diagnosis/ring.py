"""A bounded history of equal rows whose latest part is always one contiguous block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Ring:
    """The last `capacity` rows of `width` numbers.

    Each row is written twice, `capacity` rows apart, so that any window is a plain slice in order of time: no copy,
    no roll.
    """

    __slots__ = ("_data", "_next", "capacity", "count")

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._next = 0
        self._data = np.full((2 * capacity, width), np.nan)

    def push(self, row: npt.ArrayLike) -> None:
        """Append one row [width]."""
        at = self._next
        self._data[at] = row
        self._data[at + self.capacity] = self._data[at]
        self._next = (at + 1) % self.capacity
        self.count += 1

    def window(self, n: int) -> Floats:
        """Return the last `n` rows, or as many as there are: a view [n, width], oldest first."""
        n = min(n, self.count, self.capacity)
        end = self._next + self.capacity
        return self._data[end - n : end]

    def widened(self, places: npt.NDArray[np.int64], width: int) -> Ring:
        """Return a ring whose column `places[i]` is this one's column i, and whose other columns are NaN."""
        wider = Ring(self.capacity, width)
        wider.count, wider._next = self.count, self._next
        wider._data[:, places] = self._data
        return wider
