"""Several sums and maxima over the ranks, made together: one collective of each kind, whoever asked.

What is to be joined asks for maxima and sums as it needs them, as a generator: each `yield` of a `Request` comes back
with the result. All that wait for the same kind on the same mesh share a collective, and sums wait until no maximum is
asked for any more, so that any number of tables, norms and changes of a step takes one maximum and one sum.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradmedic.stats.collective import collective_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """Values [...] to be joined with those of the other ranks of a mesh: their sum, or their largest."""

    mesh: Any
    values: Tensor
    largest: bool = False


#: Asks for what it needs of the other ranks, and returns what it makes of it.
Joining = Generator[Request, Tensor, T]


def run(joining: Joining[T]) -> T:
    """Return what one joining makes, with collectives of its own."""
    result: T = run_together([joining])[0]
    return result


def run_together(joinings: Sequence[Joining[Any]]) -> list[Any]:
    """Return what each joining makes; all ranks must call this with the same ones, in the same order.

    Which collectives run, and in which order, follows from what is asked for alone.
    """
    results: list[Any] = [None] * len(joinings)
    waiting: dict[int, Request] = {}
    order: list[Any] = []  # meshes, as they were first asked for

    def advance(at: int, answer: Tensor | None) -> None:
        try:
            waiting[at] = next(joinings[at]) if answer is None else joinings[at].send(answer)
            if waiting[at].mesh not in order:
                order.append(waiting[at].mesh)
        except StopIteration as ended:
            results[at] = ended.value

    for at in range(len(joinings)):
        advance(at, None)
    while waiting:
        mesh = min((request.mesh for request in waiting.values()), key=order.index)
        largest = any(request.largest for request in waiting.values() if request.mesh == mesh)
        chosen = [at for at, each in waiting.items() if each.mesh == mesh and each.largest == largest]
        for at, answer in zip(chosen, _reduced([waiting.pop(at) for at in chosen]), strict=True):
            advance(at, answer)
    return results


def _reduced(requests: list[Request]) -> list[Tensor]:
    collective, home = collective_of(requests[0].mesh), requests[0].values
    reduce = collective.maximum if requests[0].largest else collective.sum
    if len(requests) == 1:
        return [reduce(home)]
    parts = [request.values.to(home.device, home.dtype, non_blocking=True).reshape(-1) for request in requests]
    pieces = torch.split(reduce(torch.cat(parts)), [part.numel() for part in parts])
    return [
        piece.reshape(request.values.shape).to(request.values.device, request.values.dtype, non_blocking=True)
        for request, piece in zip(requests, pieces, strict=True)
    ]
