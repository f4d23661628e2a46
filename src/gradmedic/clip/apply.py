"""The one place where gradients are changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.clip import on_device
from gradmedic.clip.operations import Limit, MomentLimit, Operation, Scale, UnitScale
from gradmedic.clip.shared import Group, bring_back, copied, shared_groups, treated_once
from gradmedic.stats import native
from gradmedic.stats.transfer import moved


@torch.no_grad()
def apply_operations(
    gradients: Sequence[torch.Tensor | None],
    operations: Sequence[Operation],
    *,
    on_host: bool = True,
    loss_scale: torch.Tensor | None = None,
) -> list[int]:
    """Change gradients in place; what two of them share in memory is changed once.

    Args:
        gradients: dense or sparse, of any dtypes and devices, N; None where there is none.
        operations: what to do, in this order.
        on_host: whether factors that lie on the CPU may be read, so that those of exactly 1 save their pass over
            memory; False takes the path of a device, where nothing is read back.
        loss_scale: what the gradients are still multiplied by, 0-d; limits are in true units.

    Returns:
        Positions of the gradients that share their memory with another; none as a rule.
    """
    groups = [] if _change_nothing(operations, on_host) else shared_groups(gradients)
    shared = [at for group in groups for at in group]
    for operation in operations:
        if groups:
            groups = _change_shared(gradients, operation, groups, on_host, loss_scale)
        elif isinstance(operation, Scale):
            _scale(gradients, operation.factor, on_host)
        else:
            _by_element(gradients, operation, loss_scale)
    return shared


def _change_shared(
    gradients: Sequence[torch.Tensor | None],
    operation: Operation,
    groups: Sequence[Group],
    on_host: bool,
    loss_scale: torch.Tensor | None,
) -> list[Group]:
    """Do one operation where gradients share memory; returns which of them do afterwards."""
    alone, merged = treated_once(gradients, operation, groups)
    if isinstance(merged, Scale):
        _scale(alone, merged.factor, on_host)
        return list(groups)
    pairs = copied(alone, groups)
    _by_element(alone, merged, loss_scale)
    bring_back(pairs)
    return shared_groups(gradients)  # a sparse one that was added up has a memory of its own now


def _change_nothing(operations: Sequence[Operation], on_host: bool) -> bool:
    """Whether it can be seen at once that nothing is to be done: most steps of a run are below their threshold."""
    return on_host and all(
        isinstance(each, Scale) and not each.factor.dim() and each.factor.device.type == "cpu" and each.factor == 1
        for each in operations
    )


@torch.no_grad()
def scale_gradients(gradients: Sequence[torch.Tensor], scale: torch.Tensor) -> None:
    """Multiply gradients in place by one factor.

    Args:
        gradients: dense or sparse, of any dtypes and devices; what two of them share in memory is multiplied once.
        scale: 0-d float64. On the CPU a factor of exactly 1 saves the pass over memory; on a device the multiplication
            by 1 is made (it changes no bit), since looking would cost a synchronisation.
    """
    groups = shared_groups(gradients)
    _scale(treated_once(gradients, Scale(scale), groups)[0] if groups else gradients, scale, True)


def _scale(gradients: Sequence[torch.Tensor | None], factor: torch.Tensor, on_host: bool) -> None:
    readable = on_host and factor.device.type == "cpu"
    if factor.dim() == 0:
        present = [gradient for gradient in gradients if gradient is not None]
        if not readable:
            # The kernel leaves alone what is multiplied by 1; torch reads and writes it.
            left = on_device.scale(present, factor.expand(len(present)).contiguous())
            _multiply_all([present[at] for at in left], factor)
        elif (number := float(factor)) != 1.0:
            _multiply_all(present, number)
        return
    chosen = [(at, gradient) for at, gradient in enumerate(gradients) if gradient is not None]
    if readable:
        numbers: list[float] = factor.tolist()
        if len(set(numbers)) == 1:
            _scale(gradients, factor[0], True)
            return
        chosen = [(at, gradient) for at, gradient in chosen if numbers[at] != 1.0]
        left = native.multiply([gradient for _, gradient in chosen], [numbers[at] for at, _ in chosen])
        chosen = [chosen[at] for at in left]
        _multiply_each([_stored(g) for _, g in chosen], [numbers[at] for at, _ in chosen])
        return
    if len(chosen) == len(gradients):
        left = on_device.scale([gradient for _, gradient in chosen], factor)
        chosen = [chosen[at] for at in left]
    parts = factor.unbind() if chosen else ()
    _multiply_each([_stored(g) for _, g in chosen], [parts[at] for at, _ in chosen])


def _multiply_all(gradients: list[torch.Tensor], factor: float | torch.Tensor) -> None:
    if isinstance(factor, float):
        gradients = [gradients[at] for at in native.multiply(gradients, [factor] * len(gradients))]
    for (device, dtype), values in _groups([_stored(gradient) for gradient in gradients]).items():
        torch._foreach_mul_([value for _, value in values], _fitting(factor, device, dtype))


def _multiply_each(gradients: Sequence[torch.Tensor], factors: Sequence[float] | Sequence[torch.Tensor]) -> None:
    for (device, dtype), entries in _groups(gradients).items():
        tensors = [value for _, value in entries]
        mine = [factors[at] for at, _ in entries]
        fitting: Any = mine
        if dtype in (torch.float16, torch.bfloat16) or isinstance(mine[0], torch.Tensor):
            fitting = [_fitting(factor, device, dtype) for factor in mine]
        torch._foreach_mul_(tensors, fitting)


def _groups(
    tensors: Sequence[torch.Tensor],
) -> dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]]:
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for at, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append((at, tensor))
    return groups


def _stored(gradient: torch.Tensor) -> torch.Tensor:
    """Return what a gradient stores; multiplying the parts of a sparse one multiplies their sum.

    Of a complex one the real and imaginary parts: a complex product with a real factor makes NaN of an infinity.
    """
    values = gradient._values() if gradient.is_sparse else gradient
    if not values.is_complex():
        return values
    return torch.view_as_real(values.conj() if values.is_conj() else values)  # a real factor does not mind the sign


def _fitting(factor: float | torch.Tensor, device: torch.device, dtype: torch.dtype) -> float | torch.Tensor:
    """Return a factor in the form in which torch multiplies tensors of this type by it most exactly."""
    if isinstance(factor, torch.Tensor):
        real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
        return moved(factor, device, real)  # gradients that were moved to the host wait for their factor
    if dtype in (torch.float16, torch.bfloat16):
        # A Python number is rounded to the tensors' type first, an error of up to 0.4 % in bf16; a tensor is not.
        return torch.tensor(factor, dtype=torch.float32)
    return factor


def _by_element(
    gradients: Sequence[torch.Tensor | None],
    operation: UnitScale | Limit | MomentLimit,
    loss_scale: torch.Tensor | None,
) -> None:
    present = [at for at in touched(operation) if gradients[at] is not None]
    for at in on_device.by_element(gradients, operation, present, loss_scale):
        gradient = gradients[at]
        if gradient is None:
            continue
        if gradient.is_sparse:
            if not gradient.is_coalesced():  # parts of one element lie apart: their sum is what is limited
                _replace(gradient, gradient.coalesce())
            gradient = gradient._values()
        gradient.copy_(applied(operation, at, gradient, loss_scale))


def _replace(sparse: torch.Tensor, coalesced: torch.Tensor) -> None:
    """Give a sparse tensor the parts of its coalesced form, in place."""
    sparse.zero_()
    sparse.add_(coalesced)


def touched(operation: Operation) -> list[int]:
    """Return the positions of the tensors that an element-wise operation changes; none for a `Scale`."""
    if isinstance(operation, UnitScale):
        return list(operation.factors)
    if isinstance(operation, Limit):
        return list(operation.limits)
    return list(operation.moments) if isinstance(operation, MomentLimit) else []


def applied(
    operation: Operation, at: int, values: torch.Tensor, loss_scale: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a tensor as the operation leaves it; NaN and infinities stay what they are.

    Args:
        operation: what to do.
        at: position of the tensor.
        values: its elements (those stored, for a sparse tensor).
        loss_scale: what the elements are still multiplied by.
    """
    if isinstance(operation, Scale):
        factor = operation.factor if operation.factor.dim() == 0 else operation.factor[at]
        return multiplied(values, factor.to(values.device, _real(values)))
    if isinstance(operation, UnitScale):
        return _scaled_units(operation, at, values)
    if isinstance(operation, Limit):
        if at not in operation.limits:
            return values
        # Filled, not copied there: a copy from the host would wait for the device.
        limit = torch.full((), operation.limits[at], dtype=_real(values), device=values.device)
    else:
        if at not in operation.moments:
            return values
        limit = _moment_limit(operation.moments[at], operation.theta, _real(values))
    if loss_scale is not None:
        limit = limit * moved(loss_scale, limit.device, limit.dtype)
    return _clamped(values, limit)


def _scaled_units(operation: UnitScale, at: int, values: torch.Tensor) -> torch.Tensor:
    factor = operation.factors.get(at)
    if factor is None:
        return values
    factor = factor.to(values.device, _real(values))
    axis = operation.dims[at]
    if axis is not None and factor.dim() and values.dim() > 1:
        factor = factor.reshape([-1 if dim == axis else 1 for dim in range(values.dim())])
    # `where` keeps the bits of units below the threshold; a product by 1 would too, except where it is not finite.
    return torch.where(factor == 1, values, multiplied(values, factor).to(values.dtype))


def multiplied(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return the product with a real factor that can be broadcast; infinities stay what they are.

    Of complex values the real and imaginary parts are multiplied: a complex product makes NaN of an infinity.
    """
    if not values.is_complex():
        return values * factor
    return torch.view_as_complex(torch.view_as_real(values.resolve_conj()) * factor.unsqueeze(-1))


def _moment_limit(moment: torch.Tensor, theta: float, real: torch.dtype) -> torch.Tensor:
    """Return the largest magnitudes that a second moment allows; Adam keeps one for each part of a complex element."""
    moment = (torch.view_as_real(moment) if moment.is_complex() else moment).to(real)
    return torch.where(moment > 0, (moment * theta).sqrt(), torch.inf)


def _clamped(values: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        return torch.view_as_complex(_clamped(torch.view_as_real(values.resolve_conj()), limit).contiguous())
    within = torch.minimum(torch.maximum(values.to(limit.dtype), -limit), limit).to(values.dtype)
    # An infinity that became a limit would hide an overflow from whoever looks for it next.
    return torch.where(torch.isinf(values), values, within)


def _real(values: torch.Tensor) -> torch.dtype:
    """Return the real type in which factors and limits of these elements are computed: fp32 or better."""
    return torch.float64 if values.dtype in (torch.float64, torch.complex128) else torch.float32
