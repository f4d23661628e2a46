"""What the user says of plain tensors whose likes lie on other ranks: pattern -> process group."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradmedic.clip.matching import check_matched, match
from gradmedic.clip.spec import Spec
from gradmedic.errors import InputError
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.sharded import may_be_wide
from gradmedic.stats.spans import Groups, Spans, check_groups


def groups_of(models: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the groups of models whose plain tensors are known to be parts: those of FullyShardedDataParallel.

    Its parameters are slices of flat ones, plain tensors of which each rank has others. What it was told to ignore is
    whole on every rank; where there is such, nothing is assumed.
    """
    distributed: Any = sys.modules.get("torch.distributed.fsdp")
    kind = None if distributed is None else distributed.FullyShardedDataParallel
    found: dict[str, Any] = {}
    for name, model in models.items():
        if kind is None or not isinstance(model, kind) or model._ignored_params:
            return None
        if model.sharding_strategy != distributed.ShardingStrategy.NO_SHARD:
            found[f"{name}.*" if name else "*"] = model.process_group
    return found or None


class RankGroups:
    """Patterns over the names of parameters and modules, and the process groups that they go with.

    Args:
        given: what the user gave: pattern -> process group, device mesh, list of them, or None.

    Raises:
        InputError: it is no such mapping, or this rank is not in one of the groups.
    """

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping) or not all(isinstance(pattern, str) for pattern in given):
            raise InputError(
                f'groups: expected a mapping such as {{"*.experts.*": process_group}}, got {given!r}'[:400]
            )
        self._groups = {str(pattern): check_groups(each, f"groups[{pattern!r}]") for pattern, each in given.items()}

    def check(self, spec: Spec) -> None:
        """Compare the patterns with all tensors that are trained.

        Raises:
            InputError: a pattern matches nothing, or a tensor belongs to different groups by two equally good ones.
        """
        check_matched(self._groups, spec, "groups")
        self._owners(spec)

    def spans(self, spec: Spec, parameters: Sequence[torch.Tensor], agreement: Agreement | None) -> Spans:
        """Return how the tensors of one optimizer go into totals."""
        places: dict[Groups, list[int]] = {groups: [] for groups in self._groups.values()}
        for at, pattern in enumerate(self._owners(spec)):
            if pattern is not None:
                places[self._groups[pattern]].append(at)
        return Spans(len(spec), places, agreement, wide=may_be_wide([p.dtype for p in parameters]))

    def _owners(self, spec: Spec) -> list[str | None]:
        """Return the pattern that wins for each tensor: the most specific one, as in `gm.clip.layers`."""
        owners: list[str | None] = [None] * len(spec)
        ranks: list[tuple[int, int]] = [(-1, -1)] * len(spec)
        for pattern in self._groups:
            found = match(pattern, spec)
            for at in (position for group in found.groups for position in group):
                rival = owners[at]
                if rival is not None and found.rank == ranks[at] and self._groups[rival] != self._groups[pattern]:
                    raise InputError(
                        f"groups: {spec.names[at]!r} matches both {rival!r} and {pattern!r}, which have different "
                        "process groups; make one of the patterns more specific"
                    )
                if found.rank > ranks[at]:
                    owners[at], ranks[at] = pattern, found.rank
        return owners
