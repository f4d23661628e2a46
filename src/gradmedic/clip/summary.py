"""What a transform may know of a step: norms by tensor, and a way to measure more where it has to."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from gradmedic.clip.access import Gradients
from gradmedic.clip.operations import Operation, Scale, UnitScale
from gradmedic.clip.spec import Spec
from gradmedic.stats.spans import Spans


@dataclass(frozen=True, slots=True)
class GradientSummary:
    """The gradients of a step, as they are now.

    Attributes:
        spec: the tensors, N.
        norm: their L2 norms over the finite elements, float64 [N]; 0 where there is no gradient.
        nonfinite: numbers of NaN and infinite elements, int64 [N].
        seen: whether there is a gradient, bool [N]; None when all have one.
        step: index of the optimizer's step, from 0.
        loss: the step's loss in true units, 0-d; None when it is not known.
        max_abs: largest magnitudes [N], or None where they were not measured.
        l1: sums of magnitudes [N], or None where they were not measured.
        gradients: a way to measure more; None where there is none.
        spans: which tensors go into totals together with those of other ranks; None where all are here. What is joint
            is then asked of the others, so that all ranks must ask for the same at the same time.
        on_host: whether values that lie on the CPU may be read; False takes the path of a device.
    """

    spec: Spec
    norm: torch.Tensor
    nonfinite: torch.Tensor
    seen: torch.Tensor | None = None
    step: int = 0
    loss: torch.Tensor | None = None
    max_abs: torch.Tensor | None = None
    l1: torch.Tensor | None = None
    gradients: Gradients | None = None
    spans: Spans | None = None
    on_host: bool = True
    _joined: dict[float, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of_norms(
        cls, norms: Sequence[float] | torch.Tensor, *, step: int = 0, loss: float | None = None
    ) -> GradientSummary:
        """Return a summary of which nothing but norms is known; NaN and infinity count as non-finite elements.

        Example:
            >>> GradientSummary.of_norms([3.0, 4.0]).total
            tensor(5., dtype=torch.float64)
        """
        given = torch.as_tensor(norms, dtype=torch.float64)
        finite = torch.isfinite(given)
        known = None if loss is None else torch.tensor(loss, dtype=torch.float64)
        spec = Spec.of_names([str(at) for at in range(len(given))])
        return cls(spec, torch.where(finite, given, 0.0), (~finite).long(), None, step, known)

    @property
    def total(self) -> torch.Tensor:
        """L2 norm of everything, 0-d float64; scaled so that float64's extremes neither overflow nor vanish."""
        return self.joint(2.0)[0]

    @property
    def finite(self) -> torch.Tensor:
        """Whether every element is finite, 0-d bool."""
        return self.joint(2.0)[1] == 0

    def joint(self, p: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (p-norm of everything over the finite elements, number of the others), 0-d; of all ranks."""
        if p not in self._joined:
            norms = self.norms(p)
            own = self.spans is None
            joined = (joint_norm(norms, p), self.nonfinite.sum()) if own else self._joint_of(norms, self.nonfinite, p)
            self._joined[p] = joined
        return self._joined[p]

    def joint_of(self, norms: torch.Tensor, p: float) -> torch.Tensor:
        """Return the p-norm, 0-d, of anything whose p-norms [N] are by tensor, such as the weights; of all ranks."""
        return joint_norm(norms, p) if self.spans is None else self._joint_of(norms, torch.zeros_like(norms), p)[0]

    def _joint_of(self, norms: torch.Tensor, sick: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.spans is not None
        return self.spans.joint_norm(norms, sick, p)

    def norms(self, p: float = 2.0) -> torch.Tensor:
        """Return the p-norms of the tensors, float64 [N], over the finite elements."""
        if p == 2.0:
            return self.norm
        if math.isinf(p) and self.max_abs is not None:
            return self.max_abs
        if p == 1.0 and self.l1 is not None:
            return self.l1
        if self.gradients is None:
            raise ValueError(f"the gradients are not at hand, and their {p:g}-norms were not measured")
        return self.gradients.norms(p)

    def among(self, mask: torch.Tensor, positions: Collection[int]) -> GradientSummary:
        """Return the summary of some of the tensors; the others count as not there.

        Args:
            mask: which ones, bool [N], where the norms live.
            positions: the same on the host, which must not have to read the mask.
        """
        seen = mask if self.seen is None else mask & self.seen
        zero = torch.zeros_like(self.norm)
        return replace(
            self,
            norm=torch.where(mask, self.norm, zero),
            nonfinite=torch.where(mask, self.nonfinite, torch.zeros_like(self.nonfinite)),
            seen=seen,
            max_abs=None if self.max_abs is None else torch.where(mask, self.max_abs, zero),
            l1=None if self.l1 is None else torch.where(mask, self.l1, zero),
            gradients=None if self.gradients is None else self.gradients.among(positions),
        )

    def after(self, operations: Sequence[Operation]) -> GradientSummary:
        """Return the summary of what the gradients will be after these operations; by arithmetic where it can be."""
        summary = self
        for operation in operations:
            summary = summary._after(operation)
        return summary

    def _after(self, operation: Operation) -> GradientSummary:
        gradients = None if self.gradients is None else self.gradients.after(operation)
        if isinstance(operation, Scale):
            factor = operation.factor.abs()
            return replace(
                self,
                norm=self.norm * factor,
                max_abs=None if self.max_abs is None else self.max_abs * factor,
                l1=None if self.l1 is None else self.l1 * factor,
                gradients=gradients,
            )
        norm = self.norm.clone()
        if isinstance(operation, UnitScale):
            for at, value in operation.norms.items():
                norm[at] = value
        elif gradients is not None:
            norm = gradients.norms(2.0)
        return replace(self, norm=norm, max_abs=None, l1=None, gradients=gradients)


def joint_norm(norms: torch.Tensor, p: float) -> torch.Tensor:
    """Return the p-norm of a vector of p-norms, 0-d float64, without overflow; 0 for none."""
    if not norms.numel():
        return torch.zeros((), dtype=torch.float64, device=norms.device)
    largest = norms.max()
    if math.isinf(p):
        return largest
    divisor = torch.where(largest > 0, largest, torch.ones_like(largest))
    if p == 2.0:
        return divisor * (norms / divisor).square().sum().sqrt()
    return divisor * (norms / divisor).pow(p).sum().pow(1.0 / p)
