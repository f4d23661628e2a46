"""A look at gradients, weights and second moments for the few transforms that norms by tensor do not suffice."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from gradmedic.clip.apply import applied, multiplied
from gradmedic.clip.operations import Operation, Scale
from gradmedic.clip.spec import Spec
from gradmedic.stats.distribution import Distribution
from gradmedic.stats.mesh_layout import local_of
from gradmedic.stats.transfer import moved


class Gradients:
    """The gradients of a step as earlier parts of a chain will leave them; nothing is changed by looking.

    Args:
        spec: the tensors, N.
        parameters: the parameters, N.
        gradients: their gradients, None where there is none.
        second_moment: returns a parameter's second moment as its optimizer keeps it, or None.
        loss_scale: what the gradients still have to be divided by, 0-d; None: nothing.
        distribution: how the parameters lie on several ranks, whose gradients are then the parts that lie here, and
            zeros where only other ranks have one; None where all are whole. What is measured is of the whole tensors,
            so that all ranks must measure the same at the same time.
    """

    def __init__(
        self,
        spec: Spec,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        second_moment: Callable[[torch.Tensor], torch.Tensor | None] | None = None,
        loss_scale: torch.Tensor | None = None,
        distribution: Distribution | None = None,
    ) -> None:
        self._spec = spec
        self._parameters = parameters
        self._distribution = None if distribution is None or distribution.plain else distribution
        self._gradients = gradients
        self._second_moment = second_moment
        self._loss_scale = loss_scale
        self._operations: tuple[Operation, ...] = ()
        self._chosen: frozenset[int] | None = None

    def _copy(self) -> Gradients:
        twin = Gradients(
            self._spec,
            self._parameters,
            self._gradients,
            self._second_moment,
            self._loss_scale,
            self._distribution,
        )
        twin._operations, twin._chosen = self._operations, self._chosen
        return twin

    def after(self, operation: Operation) -> Gradients:
        """Return the gradients as this operation will leave them."""
        twin = self._copy()
        twin._operations = (*self._operations, operation)
        return twin

    def among(self, positions: Collection[int]) -> Gradients:
        """Return the gradients at these positions only."""
        twin = self._copy()
        twin._chosen = frozenset(positions) if self._chosen is None else self._chosen.intersection(positions)
        return twin

    @property
    def positions(self) -> list[int]:
        """Positions of the tensors that have a gradient; known on the host."""
        chosen = self._chosen
        return [at for at, g in enumerate(self._gradients) if g is not None and (chosen is None or at in chosen)]

    def values(self, at: int) -> torch.Tensor:
        """Return a gradient's values (of a sparse one those that it stores), in true units and float64 or better.

        A temporary of the gradient's size; NaN and infinities are among them.
        """
        gradient = self._gradients[at]
        assert gradient is not None, "only those at `positions` have a gradient"
        values = gradient.coalesce()._values() if gradient.is_sparse else gradient
        wide = torch.complex128 if values.is_complex() else torch.float64
        values = values.to(wide)
        if self._loss_scale is not None:
            scale = moved(self._loss_scale, values.device, torch.float64)
            values = multiplied(values, 1.0 / scale) if values.is_complex() else values / scale
        for operation in self._operations:
            values = applied(operation, at, values)
        return values

    def norms(self, p: float) -> torch.Tensor:
        """Return p-norms over the finite elements, float64 [N]; one pass over each gradient."""
        result = torch.zeros(len(self._gradients), dtype=torch.float64, device=self._spec.device)
        for at in self.positions:
            result[at] = _norm_of_finite(self.values(at), p)
        return result if self._distribution is None else self._distribution.join_p_norms(result, p)

    def unit_norms(self, axes: Mapping[int, int | None], p: float = 2.0) -> dict[int, torch.Tensor]:
        """Return the norms of gradients' output units: position -> float64 [units], 0-d where the tensor is one unit.

        A unit with a NaN or an infinity gives NaN or infinity: nobody can say what its norm should be. For a sparse
        gradient, the units are the rows that it stores.

        Args:
            axes: position, among `positions`, -> axis of the units, None where the tensor is one unit.
            p: of the norm.
        """
        return self._joined({at: self._unit_norms(at, axis, p) for at, axis in axes.items()}, axes, p)

    def _unit_norms(self, at: int, axis: int | None, p: float) -> torch.Tensor:
        simple = all(isinstance(operation, Scale) for operation in self._operations)
        gradient = self._gradients[at]
        assert gradient is not None, "only those at `positions` have a gradient"
        if not simple or gradient.is_sparse or self._loss_scale is not None or gradient.is_complex():
            return unit_norms(self.values(at).abs(), axis, p)
        result = unit_norms(gradient, axis, p)
        for operation in self._operations:
            assert isinstance(operation, Scale)
            result = result * (operation.factor if operation.factor.dim() == 0 else operation.factor[at])
        return result

    def weight_norms(self, p: float = 2.0) -> torch.Tensor:
        """Return the weights' p-norms, float64 [N]; one pass over all weights."""
        result = torch.zeros(len(self._gradients), dtype=torch.float64, device=self._spec.device)
        for at in self.positions:
            result[at] = _p_norm(self._weight(at), p, self._wide(at))
        return result if self._distribution is None else self._distribution.join_p_norms(result, p)

    def weight_unit_norms(self, axes: Mapping[int, int | None], p: float = 2.0) -> dict[int, torch.Tensor]:
        """Return the norms of the output units of weights, as `unit_norms`; for a sparse gradient of its rows."""
        norms = {
            at: unit_norms(_as_stored(self._weight(at), self._gradients[at]), axis, p) for at, axis in axes.items()
        }
        return self._joined(norms, axes, p)

    def units_here(self, values: torch.Tensor, at: int, axis: int | None) -> torch.Tensor:
        """Return the part of a vector of units, as `unit_norms` gives it, for the gradient that lies here."""
        return values if self._distribution is None else self._distribution.units_here(values, at, axis)

    def any_rank(self, flag: torch.Tensor) -> torch.Tensor:
        """Return whether a flag, 0-d bool, that was worked out from what lies here is set on any rank."""
        return flag if self._distribution is None else self._distribution.any_rank(flag)

    def _joined(
        self, norms: dict[int, torch.Tensor], axes: Mapping[int, int | None], p: float
    ) -> dict[int, torch.Tensor]:
        return norms if self._distribution is None else self._distribution.join_units(norms, axes, p)

    def _weight(self, at: int) -> torch.Tensor:
        return local_of(self._parameters[at].detach())

    def second_moment(self, at: int) -> torch.Tensor | None:
        """Return the running mean of squared gradients that the optimizer keeps, or None where there is none yet.

        It has the shape of `values`: of a sparse gradient's, the rows that it stores.
        """
        moment = None if self._second_moment is None else self._second_moment(self._parameters[at])
        return None if moment is None else _as_stored(local_of(moment), self._gradients[at])

    def _wide(self, at: int) -> torch.dtype:
        return torch.complex128 if self._parameters[at].is_complex() else torch.float64


def _p_norm(values: torch.Tensor, p: float, wide: torch.dtype) -> torch.Tensor:
    if not values.numel():  # an empty part has no largest element
        return torch.zeros((), dtype=torch.float64, device=values.device)
    norm: torch.Tensor = torch.linalg.vector_norm(values, p, dtype=wide).double()
    return norm


def _as_stored(tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return the part of a parameter-shaped tensor that belongs to what a gradient stores."""
    if gradient is None or not gradient.is_sparse:
        return tensor
    return tensor[tuple(gradient.coalesce()._indices())]


def unit_norms(values: torch.Tensor, axis: int | None, p: float) -> torch.Tensor:
    """Return the p-norms along `axis`, float64; in float64, so that nothing overflows."""
    wide = torch.complex128 if values.is_complex() else torch.float64
    if axis is None or values.dim() < 2:
        return _p_norm(values, p, wide)
    if not values.numel():
        return torch.zeros(values.shape[axis], dtype=torch.float64, device=values.device)
    others = [dim for dim in range(values.dim()) if dim != axis]
    each: torch.Tensor = torch.linalg.vector_norm(values, p, dim=others, dtype=wide).double()
    return each


def _norm_of_finite(values: torch.Tensor, p: float) -> torch.Tensor:
    magnitude = values.abs()
    magnitude = torch.where(torch.isfinite(magnitude), magnitude, torch.zeros_like(magnitude))
    if not magnitude.numel():
        return torch.zeros((), dtype=torch.float64, device=values.device)
    top = magnitude.max()
    if math.isinf(p):
        return top
    # Divided by the largest magnitude first, |g|^p cannot overflow.
    safe = torch.where(top > 0, top, torch.ones_like(top))
    return safe * (magnitude / safe).pow(p).sum().pow(1.0 / p)
