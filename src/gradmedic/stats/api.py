"""The public functions: which backend measures which tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from gradmedic.errors import InputError
from gradmedic.stats import device, native, reference, torch_backend
from gradmedic.stats.inputs import Tensors, all_plain, label, materialise, stored, unwrap
from gradmedic.stats.merging import add_zeros
from gradmedic.stats.table import StatsTable
from gradmedic.types import Backend


def gradient_stats(tensors: Tensors, *, histogram: bool = False, backend: Backend = "auto") -> StatsTable:
    """Measure tensors: norm, extremes, mean, spread and counts of each, in one pass over memory on the CPU.

    Nothing is modified and no graph is kept. Results do not depend on the number of threads.

    Args:
        tensors: a tensor, an iterable (generators are read once) or a mapping of names to tensors. Floating or
            complex types on any device, of any shape, stride and sparse layout. Complex tensors are measured by
            their absolute values. For a DTensor, the shard of this process is measured.
        histogram: also count the powers of two, `log2_hist`; costs about as much again.
        backend: "auto" reads dense CPU tensors with the compiled extension, where there is one, and everything else
            with torch; "native" and "torch" insist on one; "reference" is slow and exact.

    Returns:
        A `StatsTable` in the order of the input. It lives on the tensors' device; where there are several, on the
        first that is not the CPU. On no device does the host wait for it, save for sparse tensors with
        duplicates not yet added up, and "reference".

    Raises:
        InputError: something is not a tensor, is of an integer type or on the meta device, or `backend` is unknown,
            not built, or "native" where the extension cannot read a tensor.

    Example:
        >>> table = gradient_stats({"weight": torch.tensor([3.0, -4.0]), "bias": torch.zeros(2)})
        >>> table.norm
        tensor([5., 0.], dtype=torch.float64)
        >>> table.zero_count
        tensor([0, 2])
    """
    names, items = materialise(tensors)
    with torch.no_grad():
        table = _measure(items, names, histogram, _chosen(backend))
    table.names = names
    return table


def norms(tensors: Tensors, *, backend: Backend = "auto") -> Tensor:
    """Return the L2 norm of each tensor; unlike `gradient_stats`, a NaN or an infinity makes it NaN or infinite.

    Args:
        tensors: as for `gradient_stats`.
        backend: as for `gradient_stats`.

    Returns:
        float64 [N], in the order of the input, on the device that `gradient_stats` would choose; no sync. A tensor
        with a NaN gives NaN; otherwise one with an infinity gives infinity. Squares never overflow.

    Raises:
        InputError: as `gradient_stats`.

    Example:
        >>> norms([torch.tensor([3.0, 4.0]), torch.tensor([float("inf")])])
        tensor([5., inf], dtype=torch.float64)
    """
    names, items = materialise(tensors)
    chosen = _chosen(backend)
    with torch.no_grad():
        if chosen == "reference":
            return reference.norms([unwrap(item, label(names, i)) for i, item in enumerate(items)])
        if chosen == "torch":
            return torch_backend.norms(_all_strided(items, range(len(items)), names)[0])
        return _norms_of(_measure(items, names, False, chosen))


def _chosen(backend: Backend) -> Backend:
    if backend not in get_args(Backend):
        raise InputError(f"expected backend to be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if native.native_available():
        return backend
    if backend == "native":
        native.require_native()
    return "torch" if backend == "auto" else backend


def _all_strided(items: list[Any], at: Sequence[int], names: tuple[str, ...] | None) -> tuple[list[Tensor], list[int]]:
    """Return the stored elements of the items at these positions, and how many zeros of each are not stored."""
    chosen = [items[i] for i in at]
    if all_plain(chosen):
        return chosen, [0] * len(chosen)
    pairs = [stored(unwrap(items[i], label(names, i)), label(names, i)) for i in at]
    return [values for values, _ in pairs], [zeros for _, zeros in pairs]


def _measure(items: list[Any], names: tuple[str, ...] | None, histogram: bool, backend: Backend) -> StatsTable:
    if backend == "reference":
        return reference.measure([unwrap(item, label(names, i)) for i, item in enumerate(items)], histogram)
    if backend == "torch":
        return _measure_rest(items, list(range(len(items))), names, histogram, backend)
    table, left = native.measure(items, histogram)
    if not left:
        return table
    return _insert(table, left, _measure_rest(items, left, names, histogram, backend))


def _measure_rest(
    items: list[Any], left: list[int], names: tuple[str, ...] | None, histogram: bool, backend: Backend
) -> StatsTable:
    """Measure the items at the positions `left`, which have first to be made readable."""
    plain, zeros = _all_strided(items, left, names)
    if backend == "torch":
        table = torch_backend.measure(plain, histogram)
    else:
        plain = [_prefer_native(values, label(names, i), backend) for values, i in zip(plain, left, strict=True)]
        table, rest = native.measure(plain, histogram)
        if rest:
            table = _insert(table, rest, device.measure([plain[i] for i in rest], histogram))
    if any(zeros):
        table = add_zeros(table, torch_backend.send(zeros, table.counts.device))
    return table


def _prefer_native(values: Tensor, called: str, backend: Backend) -> Tensor:
    readable = native.readable(values)
    if readable is None and backend == "native":
        raise InputError(
            f"expected {called} to be a CPU tensor of float32, float64, bfloat16 or float16 for backend='native', got "
            f"{values.dtype} on {values.device}; use backend='auto'"
        )
    return values if readable is None else readable


def _insert(table: StatsTable, at: list[int], rows: StatsTable) -> StatsTable:
    """Return `table`, moved to where `rows` are, with those rows at the given positions."""
    there = rows.counts.device
    index = torch_backend.send(at, there)
    moments = table.moments.to(there, non_blocking=True).index_copy(1, index, rows.moments)
    counts = table.counts.to(there, non_blocking=True).index_copy(1, index, rows.counts)
    histogram = table.log2_hist
    if histogram is not None and rows.log2_hist is not None:
        histogram = histogram.to(there, non_blocking=True).index_copy(0, index, rows.log2_hist)
    return StatsTable(moments, counts, histogram)


def _norms_of(table: StatsTable) -> Tensor:
    infinite = torch.where(table.inf_count > 0, torch.inf, table.norm)
    return torch.where(table.nan_count > 0, torch.nan, infinite)
