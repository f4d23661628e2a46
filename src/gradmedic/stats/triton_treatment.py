"""Changes many tensors in place by what lies on their device: factors, factors of units, limits."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmedic.stats.triton_elements import element
from gradmedic.stats.triton_tables import TableCache, Tables, on, place_of, send

#: Nothing is kept from block to block: more elements of one block on their way keep the memory busy.
_BLOCK, _WARPS = 4096, 4
#: Small tables, of units and of limits, that are kept.
_KEPT = 8


@cache
def kernels() -> Any:
    """Return the module of the kernels; ImportError where Triton is not installed."""
    return importlib.import_module("gradmedic.stats.triton_treatment_kernels")


class TritonTreatment:
    """Changes tensors that are `readable`, of 16 bits an element or more, on one device, each once, N >= 1.

    Every method adds to `done` the positions of those it has changed, launch by launch: where a later launch fails,
    the others are left to be changed by other means, and none is changed twice.

    Args:
        tables: shared with what measures: mostly the same tensors.
    """

    def __init__(self, tables: TableCache) -> None:
        self._tables = tables
        self._small: OrderedDict[Hashable, Any] = OrderedDict()
        #: Kernels launched so far.
        self.launches = 0

    @torch.no_grad()
    def scale(self, tensors: list[Tensor], factors: Tensor, done: set[int]) -> None:
        """Multiply each tensor by its factor, float64 [N] on the device, in float32 or wider; 1 costs no access."""
        tables = self._tables.of(tensors)
        self._launch(kernels().scale_chunks, tables, done, factors, tables.positions)

    @torch.no_grad()
    def scale_units(
        self, tensors: list[Tensor], factors: Sequence[Tensor], inners: Sequence[int], done: set[int]
    ) -> None:
        """Multiply each unit by its factor, in float32 or wider; units with a factor of 1 are not touched.

        Args:
            tensors: N.
            factors: float64 on the device, for each tensor those of its u_t >= 1 units.
            inners: of each tensor the elements that follow each other in one unit, >= 1: element i, counted in
                memory, belongs to unit `i // inner % u_t`.
            done: where positions are added.
        """
        tables = self._tables.of(tensors)
        counts = [each.numel() for each in factors]
        layout = self._kept(
            ("units", place_of(tensors[0].device), tables.order, tuple(counts), tuple(inners)),
            lambda: _layout(tables.order, counts, inners, tensors[0].device),
        )
        flat = torch.cat([each.reshape(-1) for each in factors]) if len(factors) > 1 else factors[0].reshape(-1)
        self._launch(kernels().scale_units, tables, done, flat.contiguous(), *layout)

    @torch.no_grad()
    def limit(
        self,
        tensors: list[Tensor],
        limits: Sequence[float],
        done: set[int],
        *,
        loss_scale: Tensor | None = None,
        moments: list[Tensor] | None = None,
    ) -> None:
        """Clamp each element to [-limit, limit]; NaN and infinities stay, and what is within is not written.

        Args:
            tensors: N.
            limits: of each tensor, > 0.
            done: where positions are added.
            loss_scale: one float on the device by which all limits are multiplied.
            moments: `readable` tensors of one type, shaped as `tensors`: the limit is then the root of the element
                times `limits`, and none where the element is not positive.
        """
        tables, device = self._tables.of(tensors), tensors[0].device
        ordered = tuple(float(limits[at]) for at in tables.order)
        bounds = self._kept(("limits", place_of(device), ordered), lambda: send(np.array(ordered), device))
        scale = torch.ones(1, dtype=torch.float64, device=device) if loss_scale is None else loss_scale.double()
        addresses = tables.addresses
        if moments is not None:
            others = tuple(moments[at].data_ptr() for at in tables.order)
            addresses = self._kept(("moments", place_of(device), others), lambda: send(np.array(others), device))
        kind = None if moments is None else element(moments[0].dtype)
        self._launch(kernels().limit_chunks, tables, done, bounds, scale.reshape(1), addresses, MOMENT=kind)

    def _launch(self, kernel: Any, tables: Tables, done: set[int], *arguments: Tensor, **constants: Any) -> None:
        with on(tables.addresses.device):
            for launch in tables.launches:
                kernel[(launch.chunks,)](
                    tables.addresses,
                    tables.numels,
                    tables.owners,
                    tables.starts,
                    launch.first,
                    tables.length,
                    *arguments,
                    ELEMENT=element(launch.dtype),
                    WIDE=launch.dtype == torch.float64,
                    ALIGNED=launch.aligned,
                    BLOCK=_BLOCK,
                    num_warps=_WARPS,
                    **constants,
                )
                self.launches += 1
                done.update(tables.order[launch.begin : launch.end])
        done.update(tables.order)  # empty ones too

    def _kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._small:
            self._small[key] = make()
            if len(self._small) > _KEPT:
                self._small.popitem(last=False)
        self._small.move_to_end(key)
        return self._small[key]


def _layout(
    order: Sequence[int], counts: Sequence[int], inners: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return where each tensor's factors begin, how many they are, and its inner length, in the order of the tables."""
    firsts = [0, *accumulate(counts)]
    columns = ([firsts[at] for at in order], [counts[at] for at in order], [inners[at] for at in order])
    first, count, inner = (send(np.array(column, dtype=np.int64), device) for column in columns)
    return first, count, inner
