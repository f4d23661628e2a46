"""How the elements of many tensors are spread over the ranks, and how what each rank has measured is joined.

Whether a collective runs depends on the tensors' layout alone, which all ranks share, never on their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmedic.stats.agreement import Agreement
from gradmedic.stats.collective import collective_of
from gradmedic.stats.joining import Joining, Request, run
from gradmedic.stats.mesh_layout import MeshLayout, added_up, is_distributed, layout_of, local_of, locals_of
from gradmedic.stats.sharded import may_be_wide, reduce_norms, reduce_table
from gradmedic.stats.table import StatsTable
from gradmedic.stats.torch_backend import send


def local_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of tensors that lie here."""
    return locals_of(tensors)


def plain_scalar(value: Tensor) -> Tensor:
    """Return a 0-d tensor that is no DTensor; a partial one is added up, on all ranks."""
    return local_of(added_up(value)) if is_distributed(value) else value


class Distribution:
    """How some parameters lie on the ranks.

    Args:
        parameters: the parameters, N.
        agreement: says whether all ranks take part; where they do not, every part is taken for a whole. None where the
            caller's own contract says that all do.
    """

    def __init__(self, parameters: Sequence[Tensor], agreement: Agreement | None = None) -> None:
        self._agreement = agreement
        self._wide = may_be_wide([parameter.dtype for parameter in parameters])
        self._place([layout_of(parameter) for parameter in parameters])
        self.ask()

    def _place(self, layouts: list[MeshLayout | None]) -> None:
        self._layouts = layouts
        self._meshes: dict[Any, list[int]] = {}
        for at, layout in enumerate(layouts):
            if layout is not None:
                self._meshes.setdefault(layout.mesh, []).append(at)
        self._all = self._meshes
        self._vectors: dict[tuple[Any, torch.device, str], Tensor] = {}
        self.spread = bool(self._all)

    def among(self, positions: Sequence[int]) -> Distribution:
        """Return how some of the parameters lie on the ranks; nobody is asked anew."""
        twin = Distribution((), self._agreement)
        twin._wide = self._wide
        twin._place([self._layouts[at] for at in positions])
        twin._meshes = {mesh: at for mesh, at in twin._all.items() if mesh in self._meshes}
        return twin

    @property
    def plain(self) -> bool:
        """Whether all tensors lie here, whole, or are taken for that."""
        return not self._meshes

    @property
    def meshes(self) -> list[Any]:
        """The meshes over which something is joined."""
        return list(self._meshes)

    def ask(self) -> bool:
        """Ask anew whether all ranks take part; return whether they do, of all meshes that there are."""
        agreement = self._agreement
        self._meshes = {mesh: at for mesh, at in self._all.items() if agreement is None or agreement.together(mesh)}
        return len(self._meshes) == len(self._all)

    def join_table(self, table: StatsTable) -> StatsTable:
        """Return the statistics of whole tensors, from those of what is here; two collectives a mesh."""
        return run(self.joining_table(table))

    def joining_table(self, table: StatsTable) -> Joining[StatsTable]:
        """The same, to be joined together with other things."""
        for mesh, positions in self._meshes.items():
            if len(positions) == len(table):
                table = yield from reduce_table(table, self._here(mesh, table.counts.device), mesh)
                continue
            index = self._index(mesh, table.counts.device)
            part = StatsTable(
                table.moments[:, index],
                table.counts[:, index],
                None if table.log2_hist is None else table.log2_hist[index],
            )
            joined = yield from reduce_table(part, self._here(mesh, index.device), mesh)
            histogram = table.log2_hist
            if histogram is not None and joined.log2_hist is not None:
                histogram = histogram.index_copy(0, index, joined.log2_hist)
            moments = table.moments.index_copy(1, index, joined.moments)
            table = StatsTable(moments, table.counts.index_copy(1, index, joined.counts), histogram, table.names)
        return table

    def join_norms(self, values: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return (L2 norms of whole tensors, float64 [N]; which have a value on any rank, bool [N]).

        Args:
            values: norms of what is here, 0 where nothing is.
            present: which have a value here.
        """
        return run(self._joining_norms(values, present))

    def _joining_norms(self, values: Tensor, present: Tensor) -> Joining[tuple[Tensor, Tensor]]:
        for mesh, positions in self._meshes.items():
            here = self._here(mesh, values.device)
            if len(positions) == len(values):
                values, present = yield from reduce_norms(values, present, here, mesh, wide=self._wide)
                continue
            index = self._index(mesh, values.device)
            joined, there = yield from reduce_norms(values[index], present[index], here, mesh, wide=self._wide)
            values, present = values.index_copy(0, index, joined), present.index_copy(0, index, there)
        return values, present

    def join_p_norms(self, values: Tensor, p: float) -> Tensor:
        """Return the p-norms over finite elements of whole tensors, float64 [N], from those of what is here."""
        for mesh in self._meshes:
            index = self._index(mesh, values.device)
            mine = torch.where(self._here(mesh, values.device), values[index], torch.zeros_like(values[index]))
            joined = collective_of(mesh).maximum(mine)
            if not math.isinf(p):
                unit = torch.where(joined > 0, joined, torch.ones_like(joined))
                joined = collective_of(mesh).sum((mine / unit).pow(p)).pow(1.0 / p) * unit
            values = values.index_copy(0, index, joined)
        return values

    def join_units(self, norms: Mapping[int, Tensor], axes: Mapping[int, int | None], p: float) -> dict[int, Tensor]:
        """Return the p-norms of the output units of whole tensors, from those of what is here; one collective a mesh.

        Args:
            norms: position -> norms of the units that lie here, [local units] or 0-d where the tensor is one unit.
            axes: position -> axis of the units, None where the tensor is one unit.
            p: of the norm.
        """
        joined = dict(norms)
        for mesh, positions in self._meshes.items():
            chosen = [at for at in positions if at in norms]
            if not chosen:
                continue
            rows = [self._spread_out(norms[at], at, axes[at]) for at in chosen]
            flat, collective = torch.cat([row.reshape(-1) for row in rows]), collective_of(mesh)
            total = collective.maximum(flat) if math.isinf(p) else collective.sum(flat.pow(p)).pow(1.0 / p)
            pieces = torch.split(total, [row.numel() for row in rows])
            for at, row, units in zip(chosen, rows, pieces, strict=True):
                joined[at] = units.reshape(row.shape)
        return joined

    def units_here(self, values: Tensor, at: int, axis: int | None) -> Tensor:
        """Return the part of a vector of a tensor's units that belongs to what lies here."""
        layout = self._layouts[at]
        if layout is None or layout.mesh not in self._meshes or not values.dim() or axis is None:
            return values
        return values[layout.slice_along(axis)]

    def any_rank(self, flag: Tensor) -> Tensor:
        """Return whether a 0-d flag is set on any rank of any mesh."""
        for mesh in self._meshes:
            flag = collective_of(mesh).maximum(flag.to(torch.float32).reshape(1)).reshape(()) > 0
        return flag

    def _spread_out(self, values: Tensor, at: int, axis: int | None) -> Tensor:
        layout = self._layouts[at]
        assert layout is not None, "plain tensors are whole"
        if not values.dim() or axis is None:
            return values if layout.counts_here else torch.zeros_like(values)
        whole = values.new_zeros(layout.shape[axis])
        if layout.counts_here:
            whole[layout.slice_along(axis)] = values
        return whole

    def joining_sums(self, sums: Tensor) -> Joining[Tensor]:
        """Return sums [K, N] over whole tensors, from those over what is here; one collective a mesh."""
        for mesh, positions in self._meshes.items():
            here = self._here(mesh, sums.device)
            nothing = torch.zeros((), dtype=sums.dtype, device=sums.device)
            if len(positions) == sums.shape[1]:
                sums = yield Request(mesh, torch.where(here, sums, nothing))
                continue
            index = self._index(mesh, sums.device)
            joined = yield Request(mesh, torch.where(here, sums[:, index], nothing))
            sums = sums.index_copy(1, index, joined)
        return sums

    def _index(self, mesh: Any, device: torch.device) -> Tensor:
        """Return the positions of the tensors on a mesh."""
        key = (mesh, device, "index")
        if key not in self._vectors:
            self._vectors[key] = send(self._all[mesh], device)
        return self._vectors[key]

    def _here(self, mesh: Any, device: torch.device) -> Tensor:
        """Return which of the tensors on a mesh count here."""
        key = (mesh, device, "here")
        if key not in self._vectors:
            flags = [layout.counts_here for at in self._all[mesh] if (layout := self._layouts[at]) is not None]
            self._vectors[key] = torch.tensor(flags, dtype=torch.bool).to(device, non_blocking=True)
        return self._vectors[key]
