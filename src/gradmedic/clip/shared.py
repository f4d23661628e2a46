"""Gradients that are one memory: two parameters whose `.grad` is the same tensor. It is treated once, not twice.

Autograd makes such gradients: of `a.view(-1) + b.view(-1)`, or of two sparse embeddings that are added, each parameter
is given a view of one and the same memory, in a shape of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from gradmedic.clip.operations import Limit, MomentLimit, Operation, Scale, UnitScale
from gradmedic.stats.inputs import flat_view

Value = TypeVar("Value")
#: Positions of the gradients that share one memory, the first of them first.
Group = list[int]


def shared_groups(gradients: Sequence[torch.Tensor | None]) -> list[Group]:
    """Return the positions of gradients that are the same elements in memory, by memory; none as a rule.

    Their shapes may differ, and sparse ones go by the values that they store. Views that overlap only in part are each
    their own.
    """
    try:
        quick = [gradient.data_ptr() for gradient in gradients if gradient is not None]
        if len(set(quick)) == len(quick):  # every step of a treatment comes by here
            return []
    except RuntimeError:  # sparse ones have no address
        pass
    return _grouped([None if gradient is None else _memory(gradient) for gradient in gradients])


def alike(gradients: Sequence[torch.Tensor | None], groups: Sequence[Group]) -> list[Group]:
    """Return of these groups what is one tensor also by its shape, so that each unit of it is one unit."""
    within = {at for group in groups for at in group}
    return _grouped([_form(each) if at in within and each is not None else None for at, each in enumerate(gradients)])


def treated_once(
    gradients: Sequence[torch.Tensor | None], operation: Operation, groups: Sequence[Group]
) -> tuple[list[torch.Tensor | None], Operation]:
    """Return gradients without repeated ones, and the operation as it is to be done to the first of each group.

    Of several factors or limits the smallest is the one that all of them allow. What looks at units or at single
    elements is still done to each shape of a memory (see `copied`), and to each sparse tensor, which is added up first.
    """
    chosen = groups if isinstance(operation, Scale) else alike(gradients, groups)
    alone = list(gradients)
    for _, *others in chosen:
        for at in others:
            alone[at] = None
    return alone, _merged(operation, chosen)


def copied(gradients: list[torch.Tensor | None], groups: Sequence[Group]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Exchange what still is one memory in several shapes for copies; returns (gradient, copy) of each."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for group in groups:
        shapes = [(at, each) for at in group if (each := gradients[at]) is not None and each.layout is torch.strided]
        for at, gradient in shapes if len(shapes) > 1 else ():
            copy = gradients[at] = gradient.clone()
            pairs.append((gradient, copy))
    return pairs


def bring_back(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give each element the smallest of what the copies in their several shapes have become; NaN stay."""
    for gradient, copy in pairs:
        gradient.copy_(torch.where(copy.abs() < gradient.abs(), copy, gradient))


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


def _grouped(places: Sequence[tuple[object, ...] | None]) -> list[Group]:
    groups: dict[tuple[object, ...], Group] = {}
    for at, place in enumerate(places):
        if place is not None:
            groups.setdefault(place, []).append(at)
    return [group for group in groups.values() if len(group) > 1]


def _memory(gradient: torch.Tensor) -> tuple[object, ...] | None:
    """Return which memory a gradient's elements are, all of it; None where it has none."""
    values = gradient._values() if gradient.is_sparse else gradient
    if values.layout is not torch.strided:
        return (gradient.device, id(gradient))
    try:
        address = values.data_ptr()
    except RuntimeError:  # a wrapper without memory of its own
        return None
    if not address:
        return None
    gaps = () if flat_view(values) is not None else (values.shape, values.stride())
    return (gradient.device, address, values.numel() * values.element_size(), *gaps)


def _form(gradient: torch.Tensor) -> tuple[object, ...] | None:
    if gradient.layout is not torch.strided:
        return (gradient.device, id(gradient))
    return (_memory(gradient), gradient.shape, gradient.stride(), gradient.dtype)
