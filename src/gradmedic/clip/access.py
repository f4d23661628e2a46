"""A look at gradients, weights and second moments for the few transforms that norms by tensor do not suffice."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch

from gradmedic.clip.apply import applied
from gradmedic.clip.operations import Operation, Scale
from gradmedic.clip.spec import Spec


class Gradients:
    """The gradients of a step as earlier parts of a chain will leave them; nothing is changed by looking.

    Args:
        spec: the tensors, N.
        parameters: the parameters, N.
        gradients: their gradients, None where there is none.
        second_moment: returns a parameter's second moment as its optimizer keeps it, or None.
        loss_scale: what the gradients still have to be divided by, 0-d; None: nothing.
    """

    def __init__(
        self,
        spec: Spec,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        second_moment: Callable[[torch.Tensor], torch.Tensor | None] | None = None,
        loss_scale: torch.Tensor | None = None,
    ) -> None:
        self._spec = spec
        self._parameters = parameters
        self._gradients = gradients
        self._second_moment = second_moment
        self._loss_scale = loss_scale
        self._operations: tuple[Operation, ...] = ()
        self._chosen: frozenset[int] | None = None

    def _copy(self) -> Gradients:
        twin = Gradients(self._spec, self._parameters, self._gradients, self._second_moment, self._loss_scale)
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
            values = values / self._loss_scale.to(values.device, torch.float64)
        for operation in self._operations:
            values = applied(operation, at, values)
        return values

    def norms(self, p: float) -> torch.Tensor:
        """Return p-norms over the finite elements, float64 [N]; one pass over each gradient."""
        result = torch.zeros(len(self._gradients), dtype=torch.float64, device=self._spec.device)
        for at in self.positions:
            result[at] = _norm_of_finite(self.values(at), p)
        return result

    def unit_norms(self, at: int, axis: int | None, p: float = 2.0) -> torch.Tensor:
        """Return the norms of a gradient's output units, float64 [units], 0-d where the tensor is one unit.

        A unit with a NaN or an infinity gives NaN or infinity: nobody can say what its norm should be. For a sparse
        gradient, the units are the rows that it stores.
        """
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
            result[at] = torch.linalg.vector_norm(self._parameters[at].detach(), p, dtype=self._wide(at)).double()
        return result

    def weight_unit_norms(self, at: int, axis: int | None, p: float = 2.0) -> torch.Tensor:
        """Return the norms of the output units of a weight, as `unit_norms`; for a sparse gradient of its rows."""
        weight = self._parameters[at].detach()
        gradient = self._gradients[at]
        return unit_norms(_as_stored(weight, gradient), axis, p)

    def second_moment(self, at: int) -> torch.Tensor | None:
        """Return the running mean of squared gradients that the optimizer keeps, or None where there is none yet.

        It has the shape of `values`: of a sparse gradient's, the rows that it stores.
        """
        moment = None if self._second_moment is None else self._second_moment(self._parameters[at])
        return None if moment is None else _as_stored(moment, self._gradients[at])

    def _wide(self, at: int) -> torch.dtype:
        return torch.complex128 if self._parameters[at].is_complex() else torch.float64


def _as_stored(tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return the part of a parameter-shaped tensor that belongs to what a gradient stores."""
    if gradient is None or not gradient.is_sparse:
        return tensor
    return tensor[tuple(gradient.coalesce()._indices())]


def unit_norms(values: torch.Tensor, axis: int | None, p: float) -> torch.Tensor:
    """Return the p-norms along `axis`, float64; in float64, so that nothing overflows."""
    wide = torch.complex128 if values.is_complex() else torch.float64
    if axis is None or values.dim() < 2:
        whole: torch.Tensor = torch.linalg.vector_norm(values, p, dtype=wide).double()
        return whole
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
