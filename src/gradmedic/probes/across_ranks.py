"""Gradients that lie on several ranks: what is here is measured, and joined with what the others hold.

Whether a collective runs depends on the parameters alone, which all ranks share, never on values or on which gradients
happen to be here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradmedic.stats import StatsTable, gradient_stats, norms
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.distribution import Distribution, local_parts
from gradmedic.stats.mesh_layout import is_distributed
from gradmedic.stats.parts import part_to_measure
from gradmedic.types import Backend


def measure_gradients(
    parameters: Sequence[Tensor], agreement: Agreement, *, full: bool, histogram: bool, backend: Backend
) -> tuple[StatsTable | None, Tensor | None, Tensor | None]:
    """Measure the gradients of readable parameters, as a table or as norms only.

    Returns:
        (table or None, norms [N] or None, present [N] or None): `present` says which tensors have a gradient on any
        rank, bool; None when all that were given have one.
    """
    if not any(map(is_distributed, parameters)):
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if full:
            return gradient_stats(gradients, histogram=histogram, backend=backend), None, None
        return None, norms(gradients, backend=backend), None
    distribution = Distribution(parameters, agreement)
    parts = [part_to_measure(parameter, together=not distribution.plain) for parameter in parameters]
    held = torch.tensor([parameter.grad is not None for parameter in parameters])
    if full:
        table = distribution.join_table(gradient_stats(parts, histogram=histogram, backend=backend))
        return table, None, (table.numel > 0) | held.to(table.counts.device, non_blocking=True)
    values = norms(parts, backend=backend)
    values, present = distribution.join_norms(values, held.to(values.device, non_blocking=True))
    return None, values, present


def global_norms(tensors: Sequence[Tensor], agreement: Agreement, *, backend: Backend) -> Tensor:
    """Return the L2 norms of whole tensors, float64 [N], for tensors of which only parts may lie here."""
    distribution = Distribution(tensors, agreement)
    values = norms(local_parts(tensors), backend=backend)
    return distribution.join_norms(values, torch.ones_like(values, dtype=torch.bool))[0]
