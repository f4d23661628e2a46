"""What a transform is told of a step, and what is noted of what it did: readings to summary, decision to readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gradmedic.clip.access import Gradients
from gradmedic.clip.apply import touched
from gradmedic.clip.base import Decision
from gradmedic.clip.operations import Operation, Scale
from gradmedic.clip.spec import Spec
from gradmedic.clip.summary import GradientSummary
from gradmedic.probes.gradients import Clip, Reading, current_norms
from gradmedic.probes.positions import index_of
from gradmedic.stats import norms
from gradmedic.stats.distribution import Distribution
from gradmedic.stats.mesh_layout import any_distributed, is_distributed
from gradmedic.stats.parts import visible_gradient
from gradmedic.stats.spans import Spans
from gradmedic.stats.transfer import moved
from gradmedic.types import Backend

Readings = list[tuple[Reading, list[int]]]


def writable_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return a parameter's gradient in a form that may be changed in place.

    An expanded gradient, whose elements share memory, and one made in inference mode are exchanged for a copy of their
    own: to fail half-way through the list would leave some gradients clipped and others not.
    """
    gradient = visible_gradient(parameter)
    if gradient is None or gradient.layout is not torch.strided or is_distributed(parameter):
        return gradient
    if (not gradient.is_contiguous() and _expanded(gradient)) or (
        gradient.is_inference() and not torch.is_inference_mode_enabled()
    ):
        parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
        return parameter.grad
    return gradient


def writable_gradients(
    parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return `writable_gradient` of each parameter, whose visible gradients are given."""
    if any_distributed(parameters):
        return [writable_gradient(parameter) for parameter in parameters]
    strided = torch.strided
    return [
        gradient
        if gradient is None or (gradient.layout is strided and gradient.is_contiguous() and not gradient.is_inference())
        else writable_gradient(parameter)
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


def _expanded(gradient: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(gradient.stride(), gradient.shape, strict=True))


def summarise(
    spec: Spec,
    readings: Readings,
    access: Gradients,
    step: int,
    loss: torch.Tensor | None,
    spans: Spans | None = None,
    *,
    on_host: bool = True,
) -> GradientSummary:
    """Return what a transform may know, from what was measured of the gradients already."""
    summary = _of_readings(spec, readings, access, step, loss)
    return summary if spans is None and on_host else replace(summary, spans=spans, on_host=on_host)


def _of_readings(
    spec: Spec, readings: Readings, access: Gradients, step: int, loss: torch.Tensor | None
) -> GradientSummary:
    if len(readings) == 1 and len(readings[0][1]) == len(spec):
        reading = readings[0][0]
        if readings[0][1] == list(range(len(spec))):
            return _of_reading(spec, reading, access, step, loss)
    size, home = len(spec), spec.device
    norm = torch.zeros(size, dtype=torch.float64, device=home)
    sick = torch.zeros(size, dtype=torch.int64, device=home)
    seen = torch.zeros(size, dtype=torch.bool, device=home)
    for reading, positions in readings:
        index = index_of(positions, home)
        part = _of_reading(spec, reading, access, step, loss)
        norm[index], sick[index] = moved(part.norm, home), moved(part.nonfinite, home)
        seen[index] = True if part.seen is None else moved(part.seen, home)
    return GradientSummary(spec, norm, sick, seen, step, loss, gradients=access)


def _of_reading(
    spec: Spec, reading: Reading, access: Gradients, step: int, loss: torch.Tensor | None
) -> GradientSummary:
    norm, table = current_norms(reading), reading.table
    if table is None:
        finite = torch.isfinite(norm)
        norm = torch.where(finite, norm, torch.zeros_like(norm))
        return GradientSummary(spec, norm, (~finite).long(), reading.present, step, loss, gradients=access)
    # A norm that was taken again, after something had changed the gradient, has what is not finite in it.
    spoilt = ~torch.isfinite(norm)
    norm = torch.where(spoilt, torch.zeros_like(norm), norm)
    sick = table.nan_count + table.inf_count + spoilt.long()
    untouched = not reading.clips and reading.remeasured is None
    largest = table.max_abs if untouched else None
    l1 = table.mean_abs * (table.numel - sick) if untouched else None
    return GradientSummary(spec, norm, sick, reading.present, step, loss, largest, l1, access)


def unless_skipped(decision: Decision, skip: torch.Tensor) -> Decision:
    """Return the decision with factors of 1 where the step is skipped: only the device knows, and treats all the same.

    Where the host knows, it leaves the gradients of a skipped step as they are.
    """
    operations = tuple(
        Scale(torch.where(skip, 1.0, moved(each.factor, skip.device))) if isinstance(each, Scale) else each
        for each in decision.operations
    )
    return replace(decision, operations=operations)


def note(
    readings: Readings,
    decision: Decision,
    gradients: list[torch.Tensor | None],
    loss_scale: torch.Tensor | None,
    backend: Backend,
    distribution: Distribution,
    withheld: torch.Tensor | None = None,
    shared: Sequence[int] = (),
) -> None:
    """Note in the readings what was done to their gradients; norms follow by arithmetic where they can.

    Args:
        withheld: whether the step is skipped, 0-d bool, where only the device knows; what was done then counts for
            nothing.
        shared: positions of gradients that share their memory with another: which factor it was multiplied by is not
            each one's own.
    """
    factor = decision.scale
    changed = {at for operation in decision.operations for at in _changed(operation, gradients)}.union(shared)
    for reading, positions in readings:
        own = factor if not factor.dim() else factor[index_of(positions, factor.device)]
        before = current_norms(reading) if changed else None
        if reading.remeasured is not None:
            at, values = reading.remeasured
            mine = own if not own.dim() else own[index_of(at, own.device)]
            reading.remeasured = (at, values * moved(mine, values.device))
        mine_changed = [at for at, position in enumerate(positions) if position in changed]
        if mine_changed and before is not None:
            after = _norms_now([positions[at] for at in mine_changed], gradients, distribution, backend)
            after = after if loss_scale is None else after / moved(loss_scale, after.device, torch.float64)
            own = own.expand(len(positions)).clone()
            index = index_of(mine_changed, own.device)
            former = before[index]
            ratio = torch.where(former > 0, moved(after, former.device) / former, torch.ones_like(former))
            own[index] = torch.where(torch.isfinite(ratio), ratio, torch.ones_like(ratio))
            own = own if withheld is None else torch.where(moved(withheld, own.device), 1.0, own)
        flag = None if decision.clipped is None else decision.clipped.double()
        reading.clips.append(Clip(None, scale=own, clipped=flag, threshold=decision.threshold, withheld=withheld))


def _norms_now(
    positions: list[int], gradients: list[torch.Tensor | None], distribution: Distribution, backend: Backend
) -> torch.Tensor:
    after = norms([g for at in positions if (g := gradients[at]) is not None], backend=backend)
    if distribution.plain:
        return after
    index = index_of(positions, after.device)
    everything = after.new_zeros(len(gradients)).index_copy(0, index, after)
    return distribution.join_norms(everything, torch.ones_like(everything, dtype=torch.bool))[0][index]


def _changed(operation: Operation, gradients: list[torch.Tensor | None]) -> list[int]:
    if isinstance(operation, Scale):
        return []
    return [at for at in touched(operation) if gradients[at] is not None]


def keep_scale(scaler: Any, skipped: torch.Tensor, scale: torch.Tensor, tracker: torch.Tensor) -> None:
    """Undo a GradScaler's growth where a step was skipped by a guard; a back-off, which others caused, stays."""
    now, count = scaler._scale, scaler._growth_tracker
    if now is None or count is None:
        return
    flag = skipped.to(now.device)
    backed_off = now < scale
    now.copy_(torch.where(flag, torch.minimum(now, scale), now))
    count.copy_(torch.where(flag & ~backed_off, tracker, count))
