"""Matrices of sampled steps by modules: activations and the gradients of outputs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gradmedic.errors import InputError
from gradmedic.record import Run
from gradmedic.record.arrays import as_floats, codes_of, to_numpy
from gradmedic.report.views.grids import Grid, only_optimizer
from gradmedic.report.views.source import Floats, Integers, Source, parts_of, source_of, split_keys, step_keys

#: What can be shown of modules; True where the values span many orders of magnitude.
MODULE_GRIDS: dict[str, bool] = {"activation_rms": True, "activation_zero": False, "output_grad": True}


def module_grid(run: Run | Source, column: str = "activation_rms", optimizer: str | None = None) -> Grid:
    """Return one statistic of the probed modules, in the order in which they ran.

    Calls of a module within one step, and the tensors of one output, are taken together.

    Args:
        run: a run, or the source of several views of it.
        column: "activation_rms", "activation_zero" (share of zeros), "output_grad" (L2 norm of the output's gradient).
        optimizer: only its steps; by default those of all, joined by step index.

    Returns:
        The grid; only the sampled steps have a row.

    Raises:
        InputError: there is no such statistic.
    """
    if column not in MODULE_GRIDS:
        raise InputError(f"no grid {column!r} of modules; there are: {', '.join(MODULE_GRIDS)}")
    source = source_of(run)
    name = only_optimizer(source, optimizer)
    chosen = _module_rows(source.modules, "grad_output" if column == "output_grad" else "output", name)
    if not len(chosen):
        none = np.zeros(0, dtype=np.int64)
        return Grid(column, name, none, none, (), np.zeros((0, 0)))
    steps, parts = to_numpy(source.modules["step"])[chosen], parts_of(source.modules)[chosen]
    keys, row = np.unique(step_keys(parts, steps), return_inverse=True)
    codes, dictionary = codes_of(source.modules["module"])
    present, first, inverse = np.unique(codes[chosen], return_index=True, return_inverse=True)
    order = _execution_order(inverse.reshape(-1), row.reshape(-1), first)
    place = np.empty(len(present), dtype=np.int64)
    place[order] = np.arange(len(present))
    shape = (len(keys), len(present))
    values = _joined(column, source.modules, chosen, row.reshape(-1), place[inverse.reshape(-1)], shape)
    if column == "output_grad":
        values = values / _loss_scales(source, name, keys)[:, None]
    names = tuple(dictionary[code] for code in present[order].tolist())
    return Grid(column, name, *split_keys(keys), names, values)


def _module_rows(table: pa.Table, what: str, optimizer: str | None) -> Integers:
    kinds, known = codes_of(table["what"])
    owners, optimizers = codes_of(table["optimizer"])
    if what not in known or (optimizer is not None and optimizer not in optimizers):
        return np.zeros(0, dtype=np.int64)
    chosen = kinds == known.index(what)
    if optimizer is not None:
        chosen &= owners == optimizers.index(optimizer)
    return np.flatnonzero(chosen)


def _loss_scales(source: Source, optimizer: str | None, keys: Integers) -> Floats:
    """Return the loss scale at each step [S]: what flows back through a model is scaled, and shown in true units."""
    scales = as_floats(source.steps["loss_scale"])
    usable = scales > 0
    if optimizer is not None:
        codes, names = codes_of(source.steps["optimizer"])
        usable &= codes == names.index(optimizer) if optimizer in names else False
    found = np.ones(len(keys))
    if usable.any():
        known = step_keys(parts_of(source.steps), to_numpy(source.steps["step"]))[usable]
        at = np.searchsorted(keys, known)
        hit = (at < len(keys)) & (keys[np.minimum(at, len(keys) - 1)] == known)
        found[at[hit]] = scales[usable][hit]
    return found


def _execution_order(modules: Integers, rows: Integers, first: Integers) -> Integers:
    """Order modules by their mean place within the steps that have them: the forward pass records them as they run."""
    by_row = np.argsort(rows, kind="stable")
    counts = np.bincount(rows)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    within = np.empty(len(rows))
    within[by_row] = (np.arange(len(rows)) - starts) / np.repeat(counts, counts)
    mean = np.bincount(modules, weights=within) / np.bincount(modules)
    order: Integers = np.lexsort((first, mean))
    return order


def _joined(
    column: str, table: pa.Table, chosen: Integers, row: Integers, place: Integers, shape: tuple[int, int]
) -> Floats:
    """Take the calls and output tensors of each module and step together."""

    def of(name: str) -> Floats:
        return as_floats(table[name])[chosen]

    cell = row * shape[1] + place
    bad = np.nan_to_num(of("nan_count")) + np.nan_to_num(of("inf_count")) > 0
    numel = np.nan_to_num(of("numel"))

    def total(values: Floats) -> Floats:
        return np.bincount(cell, weights=values, minlength=shape[0] * shape[1]).astype(np.float64)

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if column == "activation_zero":
            made = total(np.nan_to_num(of("zero_count"))) / total(numel)
        else:
            values = of("norm" if column == "output_grad" else "rms")
            scale = _largest(cell, values, shape[0] * shape[1])
            parts = np.square(np.where(np.isfinite(values), values, 0.0) / scale[cell])
            squares = total(parts) if column == "output_grad" else total(parts * numel) / total(numel)
            made = scale * np.sqrt(squares)
            known = np.bincount(cell, weights=~np.isnan(values), minlength=len(made)) > 0
            made[~known] = np.nan
    made[np.bincount(cell, minlength=len(made)) == 0] = np.nan
    if column != "activation_zero":
        made[cell[bad]] = np.inf
    return made.reshape(shape)


def _largest(cell: Integers, values: Floats, cells: int) -> Floats:
    largest = np.zeros(cells)
    np.maximum.at(largest, cell, np.where(np.isfinite(values), np.abs(values), 0.0))
    return np.where(largest > 0, largest, 1.0)
