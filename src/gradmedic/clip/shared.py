"""Gradients that are one memory: two parameters whose `.grad` is the same tensor. It is treated once, not twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from gradmedic.clip.operations import Limit, MomentLimit, Operation, Scale, UnitScale

Value = TypeVar("Value")
#: Positions of the gradients that share one memory, the first of them first.
Group = list[int]


def shared_groups(gradients: Sequence[torch.Tensor | None]) -> list[Group]:
    """Return the positions of gradients that are the same elements in memory, by memory; none as a rule.

    Views that overlap only in part are each their own.
    """
    try:
        quick = [gradient.data_ptr() for gradient in gradients if gradient is not None]
        if len(set(quick)) == len(quick):  # every step of a treatment comes by here
            return []
    except RuntimeError:  # sparse ones have no address
        pass
    places = [0 if gradient is None else _address(gradient) for gradient in gradients]
    groups: dict[tuple[object, ...], Group] = {}
    for at, (place, gradient) in enumerate(zip(places, gradients, strict=True)):
        if place and gradient is not None:
            shape = (gradient.shape, gradient.stride()) if gradient.layout is torch.strided else ()
            groups.setdefault((gradient.device, place, *shape), []).append(at)
    return [group for group in groups.values() if len(group) > 1]


def treated_once(
    gradients: Sequence[torch.Tensor | None], operations: Sequence[Operation], groups: Sequence[Group]
) -> tuple[list[torch.Tensor | None], list[Operation]]:
    """Return gradients without repeated ones, and the operations as they are to be done to the first of each group.

    Of several factors or limits the smallest is the one that all of them allow.
    """
    alone = list(gradients)
    for _, *others in groups:
        for at in others:
            alone[at] = None
    return alone, [_merged(operation, groups) for operation in operations]


def _merged(operation: Operation, groups: Sequence[Group]) -> Operation:
    if isinstance(operation, Scale):
        if operation.factor.dim() == 0:
            return operation
        factor = operation.factor.clone()
        for group in groups:
            factor[group[0]] = factor[group].amin()
        return Scale(factor)
    if isinstance(operation, UnitScale):
        dims = _first_of(operation.dims, groups)
        return replace(operation, factors=_smallest(operation.factors, groups), dims=dims)
    if isinstance(operation, Limit):
        limits = dict(operation.limits)
        for group in groups:
            given = [limits[at] for at in group if at in limits]
            limits.update({group[0]: min(given)} if given else {})
        return Limit(limits)
    assert isinstance(operation, MomentLimit)
    return MomentLimit(operation.theta, _smallest(operation.moments, groups))


def _smallest(values: Mapping[int, torch.Tensor], groups: Sequence[Group]) -> dict[int, torch.Tensor]:
    merged = _first_of(values, groups)
    for first, *others in groups:
        for at in others:
            if at in values and values[at].shape == merged[first].shape and not merged[first].is_complex():
                merged[first] = torch.minimum(merged[first], values[at].to(merged[first].device))
    return merged


def _first_of(values: Mapping[int, Value], groups: Sequence[Group]) -> dict[int, Value]:
    merged = dict(values)
    for group in groups:
        there = [at for at in group if at in values]
        if there:
            merged[group[0]] = values[there[0]]
    return merged


def _address(gradient: torch.Tensor) -> int:
    """Return where the elements lie; 0 where there are none, or where that cannot be told."""
    if gradient.layout is not torch.strided:
        return id(gradient)
    try:
        return gradient.data_ptr()
    except RuntimeError:  # a wrapper without memory of its own
        return 0
