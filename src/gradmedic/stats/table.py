"""The table that every backend fills: one column per statistic, one entry per tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradmedic.errors import InputError
from gradmedic.frame import Row
from gradmedic.types import COUNT_COLUMNS, HISTOGRAM_BINS, MOMENT_COLUMNS

_COLUMNS = (*MOMENT_COLUMNS, *COUNT_COLUMNS)


class _Column:
    """One row of the table's storage, as an attribute; slicing on demand keeps building a table cheap."""

    def __init__(self, name: str, meaning: str) -> None:
        self.__doc__ = meaning
        self.is_count = name in COUNT_COLUMNS
        self.position = (COUNT_COLUMNS if self.is_count else MOMENT_COLUMNS).index(name)

    def __get__(self, table: StatsTable, owner: type[StatsTable]) -> Tensor:
        return (table.counts if self.is_count else table.moments).select(0, self.position)


class StatsTable:
    """Statistics of N tensors; every column is a 1-D tensor of length N, in input order, on one device.

    Moments are over the finite elements of a tensor, which number `numel - nan_count - inf_count`. Without any, they
    are all 0; that is the neutral element of `merge`, which goes by the counts.

    ============ ======= =========================================================================================
    column       dtype   meaning
    ============ ======= =========================================================================================
    norm         float64 square root of the sum of squares
    max_abs      float64 largest absolute value
    min_abs      float64 smallest absolute value, zeros included
    mean         float64 arithmetic mean (of the absolute values for complex tensors)
    std          float64 standard deviation of the population (divides by n, not n - 1)
    mean_abs     float64 mean absolute value
    numel        int64   number of elements (of the dense form for sparse tensors)
    zero_count   int64   number of zeros of either sign (of the dense form for sparse tensors)
    nan_count    int64   number of NaN
    inf_count    int64   number of infinities of either sign
    ============ ======= =========================================================================================

    Attributes:
        moments: float64 [6, N], rows in the order of `gradmedic.types.MOMENT_COLUMNS`.
        counts: int64 [4, N], rows in the order of `gradmedic.types.COUNT_COLUMNS`.
        log2_hist: int64 [N, 64], or None: bin k counts 2^(k-48) <= |g| < 2^(k-47); the first and the last bin gather
            what lies beyond; zeros and non-finite values are in none.
        names: names of the tensors, or None where they were given without.
    """

    __slots__ = ("counts", "log2_hist", "moments", "names")

    norm = _Column("norm", "L2 norm [N].")
    max_abs = _Column("max_abs", "Largest absolute value [N].")
    min_abs = _Column("min_abs", "Smallest absolute value, zeros included [N].")
    mean = _Column("mean", "Mean [N].")
    std = _Column("std", "Standard deviation of the population [N].")
    mean_abs = _Column("mean_abs", "Mean absolute value [N].")
    numel = _Column("numel", "Number of elements [N].")
    zero_count = _Column("zero_count", "Number of zeros [N].")
    nan_count = _Column("nan_count", "Number of NaN [N].")
    inf_count = _Column("inf_count", "Number of infinities [N].")

    def __init__(
        self,
        moments: Tensor,
        counts: Tensor,
        log2_hist: Tensor | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.moments = moments
        self.counts = counts
        self.log2_hist = log2_hist
        self.names = names

    def __len__(self) -> int:
        return self.counts.shape[1]

    def __repr__(self) -> str:
        kind = "with" if self.log2_hist is not None else "without"
        return f"StatsTable({len(self)} tensors, {kind} histogram, on {self.counts.device})"

    def total_norm(self) -> Tensor:
        """Return the L2 norm over all tensors: NaN if any element is, else infinite if any element is.

        The squares never overflow, so that finite values have a finite norm wherever float64 can hold it.

        Returns:
            0-d float64 on the table's device; nothing is read back to the host.
        """
        norm = self.norm
        if len(self) == 0:
            return norm.new_zeros(())
        largest = norm.max()
        scale = torch.where(largest > 0, largest, 1.0)
        finite = torch.where(largest.isinf(), largest, (norm / scale).square().sum().sqrt() * largest)
        with_inf = torch.where(self.inf_count.sum() > 0, math.inf, finite)
        return torch.where(self.nan_count.sum() > 0, math.nan, with_inf)

    def nonfinite(self) -> Tensor:
        """Return the number of NaN and infinite elements of all tensors: 0-d int64 on the table's device, no sync."""
        return self.counts[COUNT_COLUMNS.index("nan_count") :].sum()

    def scaled(self, factor: float | Tensor) -> StatsTable:
        """Return the statistics of the tensors multiplied by `factor`, as for taking back a loss scale.

        Args:
            factor: positive and finite; a number, or a 0-d tensor (which is not read, hence not checked).

        Returns:
            A new table. The histogram is shifted by the rounded log2 of the factor: exact for powers of two, within
            half a bin otherwise; what the ends had gathered moves as if it lay in them.

        Raises:
            InputError: the factor is a number that is not positive and finite.

        Example:
            >>> gradient_stats([torch.tensor([3.0, 4.0])]).scaled(0.5).norm
            tensor([2.5000], dtype=torch.float64)
        """
        if not isinstance(factor, Tensor) and not 0 < factor < math.inf:
            raise InputError(f"expected a positive, finite factor, got {factor!r}; pass 1 / loss_scale to unscale")
        scale = torch.as_tensor(factor, dtype=self.moments.dtype, device=self.moments.device)
        histogram = self.log2_hist
        if histogram is not None:
            bins = torch.arange(HISTOGRAM_BINS, device=histogram.device)
            target = (bins + scale.log2().round()).clamp(0, HISTOGRAM_BINS - 1).long().expand_as(histogram)
            histogram = torch.zeros_like(histogram).scatter_add_(1, target, histogram)
        return StatsTable(self.moments * scale, self.counts, histogram, self.names)

    def packed(self) -> Tensor:
        """Return all columns as one float64 tensor, so that one copy or one collective moves the whole table.

        Returns:
            float64 [10, N], or [74, N] with the histogram: moments, counts (exact below 2^53), bins. On the table's
            device, no sync.
        """
        parts = [self.moments, self.counts.to(self.moments.dtype)]
        if self.log2_hist is not None:
            parts.append(self.log2_hist.to(self.moments.dtype).T)
        return torch.cat(parts)

    @classmethod
    def from_packed(cls, packed: Tensor, names: tuple[str, ...] | None = None) -> StatsTable:
        """Return the table that `packed` came from.

        Args:
            packed: float64 [10, N] or [74, N], as `StatsTable.packed` gives it.
            names: names of the N tensors, if they have any.

        Raises:
            InputError: the shape is neither.
        """
        rows, with_bins = len(_COLUMNS), len(_COLUMNS) + HISTOGRAM_BINS
        if packed.dim() != 2 or packed.shape[0] not in (rows, with_bins):
            raise InputError(
                f"expected a packed table of shape [{rows}, N] or [{with_bins}, N], got {list(packed.shape)}; "
                "pass what StatsTable.packed() returned"
            )
        histogram = packed[rows:].T.long() if packed.shape[0] == with_bins else None
        return cls(packed[: len(MOMENT_COLUMNS)], packed[len(MOMENT_COLUMNS) : rows].long(), histogram, names)

    def to_numpy(self) -> dict[str, npt.NDArray[Any]]:
        """Return all columns on the host: float64 [N], int64 [N], and `log2_hist` int64 [N, 64] where there is one.

        The whole table crosses in one copy; on a device other than the CPU this waits for the device.
        """
        table = self
        if self.counts.device.type != "cpu":
            table = StatsTable.from_packed(self.packed().cpu())
        moments, counts = table.moments.numpy().astype(np.float64, copy=False), table.counts.numpy()
        columns = dict(zip(_COLUMNS, (*moments, *counts), strict=True))
        if table.log2_hist is not None:
            columns["log2_hist"] = table.log2_hist.numpy()
        return columns

    def rows(self) -> list[Row]:
        """Return one `Row` of plain Python numbers per tensor, with `name` where names are known (waits as `to_numpy`).

        Example:
            >>> gradient_stats({"bias": torch.tensor([3.0, -4.0])}).rows()[0].norm
            5.0
        """
        columns = self.to_numpy()
        histogram = columns.pop("log2_hist", None)
        lists = {name: column.tolist() for name, column in columns.items()}
        rows = []
        for i in range(len(self)):
            values: dict[str, Any] = {"name": self.names[i]} if self.names is not None else {}
            values.update({name: column[i] for name, column in lists.items()})
            if histogram is not None:
                values["log2_hist"] = histogram[i]
            rows.append(Row(values))
        return rows
