"""Tensors that are parts of a model whose other parts lie on other ranks: pipeline stages, and experts.

They are plain tensors, or distributed over a mesh of their own, and nothing about them says that there are others: the
user names the process group. Each rank keeps the numbers of its own tensors. Joined are totals over all tensors: norms
by their p, counts, extremes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmedic.stats.agreement import Agreement
from gradmedic.stats.joining import Joining, Request, run
from gradmedic.stats.torch_backend import send

#: Process groups, one after the other; none for a copy of what another rank counts.
Groups = tuple[Any, ...]


class Spans:
    """Which of N tensors go into totals together with those of other ranks.

    Args:
        size: N.
        places: process groups -> positions of the tensors, which may be none: the others' totals are wanted here too.
            The same groups in the same order on all ranks of each group. Tensors of an empty tuple count in no total.
        agreement: says whether all ranks of a group take part; None where the caller's own contract says so.
        wide: whether norms may exceed 1e150.
    """

    def __init__(
        self,
        size: int,
        places: Mapping[Groups, Sequence[int]],
        agreement: Agreement | None = None,
        *,
        wide: bool = False,
    ) -> None:
        self._all = {groups: list(at) for groups, at in places.items()}
        self._wide = wide
        self._agreement = agreement
        elsewhere = {position for at in self._all.values() for position in at}
        self._outside = [at for at in range(size) if at not in elsewhere]
        self._indices: dict[tuple[Groups | None, torch.device], Tensor] = {}
        self._agreed = agreement is None

    def ask(self) -> bool:
        """Ask anew whether all ranks take part, and return whether they do; if not, every rank's part is a whole."""
        agreement = self._agreement
        self._agreed = agreement is None or all([agreement.together((each,)) for key in self._all for each in key])
        return self._agreed

    @property
    def groups(self) -> list[Any]:
        """All process groups, each once."""
        return list(dict.fromkeys(each for groups in self._all for each in groups))

    @property
    def agreed(self) -> bool:
        """Whether all ranks took part when they were last asked; nobody is asked before `ask` is called."""
        return self._agreed

    def joining_totals(self, rows: Tensor) -> Joining[Tensor]:
        """Return the sums [K] of rows [K, N] over all tensors, here and on the other ranks; one collective a group."""
        total = rows[:, self._index(None, rows.device)].sum(1)
        for groups in self._all:
            if groups:
                part = rows[:, self._index(groups, rows.device)].sum(1)
                total = total + ((yield Request(groups, part)) if self._agreed else part)
        return total

    def joining_largest(self, values: Tensor) -> Joining[Tensor]:
        """Return the largest of values [N] >= 0 over all tensors, here and on the other ranks, 0-d; 0 for none."""
        zero = values.new_zeros(1)
        largest = torch.cat([values[self._index(None, values.device)], zero]).max()
        for groups in self._all:
            if groups:
                part = torch.cat([values[self._index(groups, values.device)], zero]).max().reshape(1)
                whole = (yield Request(groups, part, largest=True)) if self._agreed else part
                largest = torch.maximum(largest, whole.reshape(()))
        return largest

    def joint_norm(self, norms: Tensor, nonfinite: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """Return (p-norm of all tensors together, number of their non-finite elements), 0-d, float64 and int64.

        Args:
            norms: p-norms of the tensors here, over their finite elements, float64 [N].
            nonfinite: numbers of their other elements, [N].
            p: of the norm.
        """
        return run(self.joining_norm(norms, nonfinite, p))

    def joining_norm(self, norms: Tensor, nonfinite: Tensor, p: float) -> Joining[tuple[Tensor, Tensor]]:
        """The same, to be joined together with other things."""
        counts = nonfinite.to(norms.dtype)
        unit = norms.new_ones(())
        if self._wide or p not in (1.0, 2.0):  # powers may not fit into float64
            largest = yield from self.joining_largest(norms)
            unit = torch.where(largest > 0, largest, unit)
        powers = torch.zeros_like(norms) if math.isinf(p) else (norms / unit).pow(p)
        total, sick = yield from self.joining_totals(torch.stack([powers, counts]))
        norm = largest if math.isinf(p) else total.pow(1.0 / p) * unit
        return norm, sick.round().long()

    def _index(self, groups: Groups | None, device: torch.device) -> Tensor:
        key = (groups, device)
        if key not in self._indices:
            self._indices[key] = send(self._outside if groups is None else self._all[groups], device)
        return self._indices[key]


def check_groups(given: Any, where: str) -> Groups:
    """Return process groups of this rank as they are kept.

    Args:
        given: a process group, a device mesh, or a sequence of them; None for a copy of what another rank counts.
        where: what it was given as, for messages.

    Raises:
        InputError: it is none of these, or this rank is not in it.
    """
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh

    from gradmedic.errors import InputError

    if given is None:
        return ()
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    found: list[Any] = []
    for each in listed:
        if isinstance(each, DeviceMesh):
            found += [each.get_group(dimension) for dimension in range(each.ndim)]
        elif each == distributed.GroupMember.NON_GROUP_MEMBER:
            raise InputError(
                f"{where}: this rank ({distributed.get_rank()}) is not in the process group; give each rank the group "
                "that it belongs to"
            )
        elif isinstance(each, distributed.ProcessGroup):
            found.append(each)
        else:
            raise InputError(
                f"{where}: expected a process group (torch.distributed.new_group), a device mesh, a list of them, or "
                f"None for a copy of a tensor that another rank counts, got {each!r}"[:400]
            )
    return tuple(found)
