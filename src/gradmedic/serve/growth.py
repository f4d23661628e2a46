"""The tables of a run that grows: read as a whole now and then, and in between completed by what has come since."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.diagnosis import Finding
from gradmedic.record import Run
from gradmedic.record.arrays import to_numpy
from gradmedic.report.page.boxes import box_entries
from gradmedic.report.page.heatmaps import grid_entry, module_grids, tells
from gradmedic.report.page.pack import pack_floats, pack_integers, unpack
from gradmedic.report.page.parts import Part, direction, head_entries, tables_part
from gradmedic.report.views.grids import Grid
from gradmedic.report.views.layers import LayerRow
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Source
from gradmedic.serve.heat import Array, Heat, block_of, columns_of_width, new_grids

#: A whole that takes less processor time than this is made anew each time; any other one takes no more than this share
#: of the time, and comes no more often than this.
CHEAP_SECONDS, SHARE, WHOLE_SECONDS = 0.1, 0.03, 30.0
#: What does not simply follow is read as a whole at once, but for a rest of so many times what the last one cost.
REST = 2.0
#: Columns may grow by this share before there must be a whole.
_MOST_GROWTH = 0.5
#: Steps before the new ones that are read again: sizes of weights hold until they are measured the next time.
_LEAD = 64

_Curve = tuple[Array, Array]


class _Unfit(Exception):
    """What has come does not simply follow what was there."""


class Growth:
    """Makes what the page shows of the tables, at the cost of what is new in them.

    To read a thousand tensors over thousands of steps takes seconds, and the page wants the newest step now. Between
    two whole readings, heatmaps, boxes and curves get the columns of the new steps; the state of tensors, and how far
    each is from healthy, wait for the next whole. So do runs of several optimizers or processes.

    Args:
        columns: of the heatmaps, at most; half as many again while they grow.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._cost, self._made = 0.0, float("-inf")
        self._part: Part = {}
        self._heats: dict[str, Heat] = {}
        self._curve: _Curve | None = None
        self._tensors: list[TensorRow] = []
        self._layers: list[LayerRow] = []
        self._row, self._step, self._width, self._modules = 0, -1, 1, 0
        self._mark: tuple[Any, ...] = ()
        #: Whether the last answer was not a whole.
        self.owes = False

    @property
    def due(self) -> bool:
        """Whether a whole may be made."""
        rests = max(WHOLE_SECONDS, self._cost / SHARE) if self._cost >= CHEAP_SECONDS else 0.0
        return time.monotonic() - self._made >= rests

    def update(self, run: Run, findings: Sequence[Finding], *, whole: bool = False) -> Part:
        """Return the part of the page that comes from the tables.

        Args:
            run: as it is now.
            findings: what is wrong with it.
            whole: make it as a whole, whatever it costs, because the run has ended.
        """
        if self._part and not whole and not self.due:
            try:
                return self._grown(Source(run))
            except _Unfit:
                if time.monotonic() - self._made < REST * self._cost:
                    return self._part
        return self._whole(run, findings)

    def _whole(self, run: Run, findings: Sequence[Finding]) -> Part:
        begun = time.thread_time()
        source = Source(run)
        part = tables_part(source, findings, self._columns)
        self._part, self._curve = part, None
        self._tensors = [TensorRow(entry["name"], entry["module"]) for entry in part["tensors"]]
        self._layers = [LayerRow(entry["name"], entry["kind"], tuple(entry["tensors"])) for entry in part["layers"]]
        self._heats = {entry["id"]: Heat.of(entry) for entry in part["grids"] if entry["of"] != "modules"}
        for curves in part["scalars"].values():
            if "direction" in curves:
                self._curve = (unpack(curves["direction"]["step"]), unpack(curves["direction"]["y"]))
        steps = to_numpy(source.tensors["step"])
        self._row, self._step = len(steps), int(steps.max()) if len(steps) else -1
        columns = max((len(heat.first) for heat in self._heats.values()), default=1)
        self._width = max(1, round(len(np.unique(steps)) / columns))
        self._modules = source.modules.num_rows
        self._mark = _mark(source.tensors, self._row)
        self._cost, self._made, self.owes = time.thread_time() - begun, time.monotonic(), False
        return part

    def _grown(self, source: Source) -> Part:
        """Return the part with the columns of the steps that have come since; raise `_Unfit` where that cannot be."""
        table = source.tensors
        if not self._heats or len(source.optimizers) != 1 or _mark(table, self._row) != self._mark:
            raise _Unfit
        steps = to_numpy(table["step"].slice(self._row))
        one = not len(steps) or _mark(table, table.num_rows)[0] == self._mark[0]
        if not one or (np.diff(steps, prepend=self._step + 1) < 0).any():
            raise _Unfit
        recent = Source(source.run, table.slice(max(0, self._row - _LEAD * max(1, len(self._tensors)))))
        heats, curve = self._with_new(recent, table, steps)
        part = dict(self._part)
        others = [entry for entry in part["grids"] if entry["of"] == "modules"]
        if source.modules.num_rows != self._modules:
            telling = [each for each in module_grids(source, source.optimizers[0]) if tells(each[0])]
            others = [grid_entry(*each, self._columns) for each in telling]
            part["heads"] = head_entries(source)
        part["grids"] = [*(heat.json() for heat in heats.values()), *others]
        part["boxes"] = self._boxes(recent)
        if curve is not None:
            drawn = {"step": pack_integers(curve[0]), "y": pack_floats(curve[1])}
            part["scalars"] = {source.optimizers[0]: {"direction": drawn}}
        self.owes = True
        return part

    def _with_new(self, recent: Source, table: pa.Table, steps: Array) -> tuple[dict[str, Heat], _Curve | None]:
        """Return heatmaps and curve with the new steps, and keep of them what no later step will change."""
        grids = new_grids(recent, self._tensors, self._layers, self._step)
        made = grids["norm"].steps
        if not len(made):
            return self._heats, self._curve
        if any(name not in self._heats and tells(grid) for name, grid in grids.items()):
            raise _Unfit
        columns = columns_of_width(made, self._width)
        whole = len(made) // self._width
        finished = columns_of_width(made[: whole * self._width], self._width)
        shown, kept = {}, {}
        for name, heat in self._heats.items():
            try:
                block = block_of(heat.entry["rows"], grids[name], columns, log=heat.entry["log"])
            except KeyError:
                raise _Unfit from None
            shown[name], kept[name] = heat.plus(columns, block), heat.plus(finished, block[:, :whole])
        if max(len(heat.first) for heat in shown.values()) > (1 + _MOST_GROWTH) * self._columns:
            raise _Unfit
        curve = self._longer(grids, len(made))
        if whole:
            self._heats, self._curve = kept, self._longer(grids, whole * self._width)
            self._step = int(finished.last[-1])
            self._row += int(np.searchsorted(steps, self._step, side="right"))
            self._mark = _mark(table, self._row)
        return shown, curve

    def _longer(self, grids: dict[str, Grid], count: int) -> _Curve | None:
        """Return the curve of direction with the first so many new steps."""
        if self._curve is None:
            return None
        norm, cosine = grids["norm"].values[:count], grids["cosine_prev"].values[:count]
        found = direction(norm, cosine)
        known = ~np.isnan(found)
        steps = np.concatenate([self._curve[0], grids["norm"].steps[:count][known]])
        return steps, np.concatenate([self._curve[1], found[known]])

    def _boxes(self, recent: Source) -> list[dict[str, Any]]:
        """Return the boxes of the whole, and those of the newest step that has any."""
        held: list[dict[str, Any]] = self._part["boxes"]
        newest = box_entries(recent, self._tensors, recent.optimizers, newest=True)
        last = max((box["step"] for box in held), default=-1)
        return [*held, *(box for box in newest if box["step"] > last)]


def _mark(table: pa.Table, row: int) -> tuple[Any, ...]:
    """Return what tells whether a table's first so many rows are still the same: process, step and name of the last."""
    if not 0 < row <= table.num_rows:
        return ()
    return tuple(table[column][row - 1].as_py() for column in ("process", "step", "name"))
