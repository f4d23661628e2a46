"""Which rows of an embedding are used: counted from the ids that its lookups keep for the backward pass.

Only sampled steps are seen. That is enough to tell rows that are never asked for from rows that are rare: as long as
new rows still turn up (many of those seen were seen once only), rows that were not seen say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf
from gradmedic.probes.node_values import behind, operation, parent, saved, setting

#: Tables with more rows than this are left out: counting costs four bytes a row, and a pass over them when sampled.
MAX_ROWS = 2**22
#: Tables that are looked at.
MAX_TABLES = 64
#: Lookups of one step that are counted, at most, evenly chosen.
MAX_LOOKUPS = 2**16


@dataclass(slots=True)
class _Seen:
    """Lookups so far: how often each row was asked for, and in how many steps anything was."""

    counts: torch.Tensor
    steps: int = 0


class EmbeddingCounts:
    """Counts the rows that `F.embedding` and `F.embedding_bag` were asked for, over all sampled steps."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def rename(self, names: Mapping[str, str]) -> None:
        """Some parameters have got another name: old -> new."""
        self._seen = {names.get(name, name): held for name, held in self._seen.items()}

    @torch.no_grad()
    def rows(self, nodes: Sequence[Any], name_of: NameOf) -> list[ModuleSample]:
        """Count the lookups of one graph.

        Args:
            nodes: the graph's nodes.
            name_of: returns (parameter name, module name) of a watched parameter, or None.

        Returns:
            One row of `what` "embedding" for each table (`leaf` is the parameter's own name); `extra` holds "rows" (of
            the table), "touched", "once" and "twice" (rows seen at all, once, and twice), "lookups", "top_share" and
            "least" (share of the row asked for most often; count of the one asked for least often, among those seen),
            "batches" (sampled steps), "batch_touched" and "batch_lookups" (in this step), and "pad_share" (share of
            `padding_idx`; NaN without one). 0-d tensors on the ids' device; no host synchronisation.
        """
        made: list[ModuleSample] = []
        for name, (module, lookups) in _lookups(nodes, name_of).items():
            made.append(self._count(name, module, lookups))
        return made

    def _count(self, name: str, module: str, lookups: list[Any]) -> ModuleSample:
        total = _table_rows(lookups[0])
        batch: torch.Tensor | None = None
        for node in lookups:
            batch = _add(batch, saved(node, "indices"), total)
        sample = ModuleSample(module, "embedding", leaf=name.rpartition(".")[2])
        if batch is None:
            return sample
        known = self._seen.get(name)
        if known is None or known.counts.shape != batch.shape or known.counts.device != batch.device:
            known = self._seen[name] = _Seen(torch.zeros_like(batch))
        known.counts = known.counts + batch
        known.steps += 1
        sample.extra |= _numbers(known, batch, setting(lookups[0], "padding_idx"))
        return sample


def _lookups(nodes: Sequence[Any], name_of: NameOf) -> dict[str, tuple[str, list[Any]]]:
    """Return parameter name -> (module name, lookup nodes)."""
    found: dict[str, tuple[str, list[Any]]] = {}
    for node in nodes:
        if operation(node) not in ("Embedding", "EmbeddingBag"):
            continue
        leaf = getattr(behind(parent(node)), "variable", None)
        named = None if leaf is None else name_of(leaf)
        if named is None or not 1 < _table_rows(node) <= MAX_ROWS:
            continue
        if named[0] in found or len(found) < MAX_TABLES:
            found.setdefault(named[0], (named[1], []))[1].append(node)
    return found


def _table_rows(node: Any) -> int:
    size = setting(node, "weight_sym_argsize_0")
    return int(size) if isinstance(size, int) else 0


def _add(counts: torch.Tensor | None, ids: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    if ids is None:
        return counts
    flat = ids.reshape(-1).to(torch.int64)
    flat = flat[:: max(1, -(-flat.numel() // MAX_LOOKUPS))].clamp(0, rows - 1)
    if counts is None:
        counts = torch.zeros(rows, dtype=torch.int32, device=flat.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))


def _numbers(known: _Seen, batch: torch.Tensor, padding: Any) -> dict[str, torch.Tensor | float]:
    counts, rows = known.counts, batch.numel()
    lookups = counts.sum()
    pad = isinstance(padding, int) and 0 <= padding < rows
    return {
        "rows": float(rows),
        "touched": (counts > 0).sum(),
        "once": (counts == 1).sum(),
        "twice": (counts == 2).sum(),
        "lookups": lookups,
        "top_share": counts.max() / lookups.clamp(min=1),
        "least": torch.where(counts > 0, counts, torch.iinfo(counts.dtype).max).min(),
        "batches": float(known.steps),
        "batch_touched": (batch > 0).sum(),
        "batch_lookups": batch.sum(),
        "pad_share": counts[padding] / lookups.clamp(min=1) if pad else math.nan,
    }
