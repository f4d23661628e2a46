"""What a step does to the weights, and whether gradients agree from step to step: from sampled coordinates.

Of tensors that lie on several ranks each rank samples its own part. What can be added up is, at the end of the step and
together with the statistics of its gradients, so that every rank records the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradmedic.probes.samples import CoordinateSampler, Views
from gradmedic.stats import norms
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.distribution import Distribution, local_parts
from gradmedic.stats.joining import Joining
from gradmedic.stats.parts import local_gradients
from gradmedic.stats.transfer import moved
from gradmedic.types import Backend

#: Weight norms are measured at each of the first steps, and from then on at recorded steps this far apart.
_EARLY_STEPS = 16
_WEIGHTS_EVERY = 8


@dataclass(slots=True)
class StepSample:
    """What was read before a step.

    Attributes:
        parts: the tensors, or what of them lies here.
        views, weights: views of the sampled coordinates, and their values before the step.
        weight_norms: of what lies here, [N]; None where they were not measured.
        due: whether every rank has measured them.
        compare: whether the weights are those before the step; otherwise nothing is known of the update.
        direction: the gradient's sampled coordinates.
    """

    parts: list[torch.Tensor]
    views: Views
    weights: torch.Tensor
    weight_norms: torch.Tensor | None = None
    due: bool = False
    compare: bool = True
    direction: torch.Tensor | None = None


class SampledChanges:
    """Samples the tensors of one optimizer from step to step.

    Args:
        agreement: with the other ranks, where tensors lie on several of them.
        backend: statistics backend, for norms of weights.
    """

    def __init__(self, agreement: Agreement, backend: Backend = "auto") -> None:
        self._agreement = agreement
        self._backend: Backend = backend
        self._sampler: CoordinateSampler | None = None
        self._distribution = Distribution(())
        self._direction: tuple[int, torch.Tensor] | None = None
        self._last_weights: tuple[int, torch.Tensor] | None = None
        self._weights_measured: int | None = None

    def forget(self) -> None:
        """The optimizer has other tensors than before."""
        self._sampler = None
        self._direction = None
        self._weights_measured = None

    def begin(self, parameters: Sequence[torch.Tensor], step: int, *, keep: bool, updated: bool) -> StepSample:
        """Read the weights before a step.

        Args:
            parameters: the optimizer's tensors, at least one.
            step: its index.
            keep: whether its table belongs to the record.
            updated: the weights have changed already; they are compared with those after the last step, if known.
        """
        parts = local_parts(parameters)
        if self._sampler is None or not self._sampler.matches(parts):
            self._sampler = CoordinateSampler(parts)
            self._distribution = Distribution(parameters, self._agreement)
            self._direction = None
        elif self._distribution.spread:
            self._distribution.ask()
        views = self._sampler.views(parts)
        sample = StepSample(parts, views, self._sampler.read(parts, views))
        if self._weights_due(step, keep):
            self.measure_weights(sample)
            self._weights_measured, sample.due = step, True
        if updated:
            at, weights = self._last_weights or (-1, None)
            sample.compare = weights is not None and at == step - 1
            if weights is not None and sample.compare:
                sample.weights = weights
        return sample

    def measure_weights(self, sample: StepSample) -> None:
        """Measure the norms of the weights: a pass over all of them."""
        sample.weight_norms = norms(sample.parts, backend=self._backend)

    def read_direction(self, sample: StepSample, parameters: Sequence[torch.Tensor]) -> None:
        """Read the gradient's coordinates."""
        if self._sampler is not None:
            sample.direction = self._sampler.read(local_gradients(parameters))

    def changed(self, sample: StepSample) -> bool:
        """Whether the weights differ from those at the beginning of the step (reads the host; CPU loops only)."""
        return self._sampler is not None and not bool(torch.equal(self._sampler.read(sample.parts), sample.weights))

    def finish(
        self, sample: StepSample, parameters: Sequence[torch.Tensor], step: int, *, full: bool
    ) -> Joining[dict[str, torch.Tensor]]:
        """Read the weights after the step, and return what is known of its changes: columns [N] by name.

        Args:
            sample: what `begin` returned.
            parameters: the optimizer's tensors.
            step: its index.
            full: whether all ranks have a table of this step; without one, nothing is joined.
        """
        sampler = self._sampler
        if sampler is None:
            return {}
        after = sampler.read(local_parts(parameters), sample.views)
        if after.shape != sample.weights.shape:  # the step has exchanged weights for others of other shapes
            return {}
        self._last_weights = (step, after)
        former = self._direction[1] if self._direction is not None and self._direction[0] == step - 1 else None
        columns: dict[str, torch.Tensor] = {}
        if sample.compare:
            columns["update_norm"], columns["unchanged_frac"] = sampler.compare(sample.weights, after)
        if sample.weight_norms is not None:
            columns["weight_norm"] = sample.weight_norms
        if sample.direction is not None:
            if former is not None and self._distribution.plain:
                columns["cosine_prev"] = sampler.cosine(sample.direction, former)
            elif former is not None:
                columns |= dict(zip(_PRODUCTS, sampler.products(sample.direction, former), strict=True))
            self._direction = (step, sample.direction)
        if self._distribution.plain:
            return columns
        if not full or not columns:
            return {}
        joined = yield from joining_columns(columns, sampler.numels, self._distribution)
        if not sample.due and bool(joined["weight_norm"].isnan().all()):  # none has looked for a cause in its weights
            del joined["weight_norm"]
        return joined

    def _weights_due(self, step: int, keep: bool) -> bool:
        """Whether weight norms are to be measured: they take a pass over all weights, and change slowly."""
        last = self._weights_measured
        return last is None or step < _EARLY_STEPS or (keep and step - last >= _WEIGHTS_EVERY)


def joining_columns(
    columns: dict[str, torch.Tensor], numels: torch.Tensor, distribution: Distribution
) -> Joining[dict[str, torch.Tensor]]:
    """Return columns of whole tensors, from those of what lies here: all as sums, in one collective a mesh.

    Args:
        columns: float64 [N] by name, the same names on all ranks but for "weight_norm", which a rank may have measured
            alone: it is NaN for a tensor of which not all parts were.
        numels: numbers of elements that lie here, float64 [N].
        distribution: how the tensors lie on the ranks.
    """
    home = next(iter(columns.values())).device
    numels = moved(numels, home)
    nothing = torch.zeros_like(numels)
    sums = {name: _as_sum(name, values, numels) for name, values in columns.items() if name != "weight_norm"}
    sums["numel"] = numels
    weights = columns.get("weight_norm")
    sums["weight_norm"] = nothing if weights is None else moved(weights, home).square()
    sums["measured"] = nothing if weights is None else numels
    rows = yield from distribution.joining_sums(
        torch.stack([torch.where(numels > 0, row, nothing) for row in sums.values()])
    )
    total = dict(zip(sums, rows, strict=True))
    joined = {name: total[name].sqrt() for name in ("update_norm",) if name in total}
    if "unchanged_frac" in total:
        joined["unchanged_frac"] = total["unchanged_frac"] / total["numel"]
    joined["weight_norm"] = torch.where(total["measured"] == total["numel"], total["weight_norm"].sqrt(), torch.nan)
    if _PRODUCTS[0] in total:
        dot, one, other = (total[name] for name in _PRODUCTS)
        joined["cosine_prev"] = dot / (one.sqrt() * other.sqrt())
    return joined


_PRODUCTS = ("dot", "squares", "former_squares")


def _as_sum(name: str, values: torch.Tensor, numels: torch.Tensor) -> torch.Tensor:
    if name == "unchanged_frac":
        return values * numels
    return values if name in _PRODUCTS else values.square()
