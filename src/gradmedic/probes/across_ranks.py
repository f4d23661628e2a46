"""Gradients that lie on several ranks: what is here is measured, and joined with what the others hold.

Whether a collective runs depends on the parameters alone, which all ranks share, never on values or on which gradients
happen to be here.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradmedic.stats import StatsTable, gradient_stats, norms
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.distribution import Distribution, local_parts
from gradmedic.stats.mesh_layout import any_distributed
from gradmedic.stats.parts import parts_to_measure
from gradmedic.types import Backend


class Layouts:
    """Keeps how the tensors lie that were measured last: the same ones as a rule, and it takes a while to look.

    Args:
        agreement: with the other ranks.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._holders: list[weakref.ref[Tensor]] = []
        self._distribution = Distribution(())

    def of(self, parameters: Sequence[Tensor]) -> Distribution:
        """Return how the parameters lie on the ranks, which have been asked whether they take part."""
        known = self._holders
        if len(known) == len(parameters) and all([held() is each for held, each in zip(known, parameters)]):  # noqa: B905
            self._distribution.ask()
        else:
            self._distribution = Distribution(parameters, self._agreement)
            self._holders = [weakref.ref(parameter) for parameter in parameters]
        return self._distribution


def measure_gradients(
    parameters: Sequence[Tensor], layouts: Layouts, *, full: bool, histogram: bool, backend: Backend
) -> tuple[StatsTable | None, Tensor | None, Tensor | None, Distribution | None]:
    """Measure the gradients of readable parameters, as a table or as norms only.

    Returns:
        (table or None, norms [N] or None, present [N] or None, distribution or None): `present` says which tensors have
        a gradient, bool; None when all that were given have one. Norms are of the whole tensors, `present` is of all
        ranks then. With a distribution, the table is of what lies here, and `present` too: who is joined with other
        things of the step later takes no collectives of its own.
    """
    if not any_distributed(parameters):
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if full:
            return gradient_stats(gradients, histogram=histogram, backend=backend), None, None, None
        return None, norms(gradients, backend=backend), None, None
    distribution = layouts.of(parameters)
    parts, here = parts_to_measure(parameters, together=not distribution.plain)
    held = torch.tensor(np.array(here))  # several times as fast as from a list
    if full:
        return gradient_stats(parts, histogram=histogram, backend=backend), None, held, distribution
    values = norms(parts, backend=backend)
    values, present = distribution.join_norms(values, held.to(values.device, non_blocking=True))
    return None, values, present, None


def global_norms(tensors: Sequence[Tensor], agreement: Agreement, *, backend: Backend) -> Tensor:
    """Return the L2 norms of whole tensors, float64 [N], for tensors of which only parts may lie here."""
    distribution = Distribution(tensors, agreement)
    values = norms(local_parts(tensors), backend=backend)
    return distribution.join_norms(values, torch.ones_like(values, dtype=torch.bool))[0]
