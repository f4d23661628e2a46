"""Attention head by head: how much of the sequence each looks at, its largest logit, the gradient that comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradmedic.probes.module_stats import measurable
from gradmedic.probes.node_values import operation, saved
from gradmedic.stats.native_readings import norms_and_means

#: Heads of one attention that are told apart; of the others only what all have together is kept.
MAX_HEADS = 16

Numbers = dict[str, torch.Tensor | float]
_GRADIENT = ("grad_norm", "grad_mean")


def by_head(name: str, values: torch.Tensor) -> Numbers:
    """Return numbers of single heads: "name.0", "name.1", ….

    Args:
        name: what they are.
        values: [samples, H]; their mean over the samples is taken.
    """
    return numbered(name, values.mean(0))


def numbered(name: str, values: torch.Tensor) -> Numbers:
    """Return numbers of heads [H] one by one: "name.0", "name.1", …; as numbers where that waits for no device."""
    first = values[:MAX_HEADS]
    return {f"{name}.{at}": value for at, value in enumerate(first.tolist() if first.is_cpu else first.unbind())}


def largest_by_head(name: str, values: torch.Tensor) -> Numbers:
    """Return the largest of all numbers [samples, H, …] as "name", and of each head's: "name.0", "name.1", …."""
    largest = values.amax(dim=[0, *range(2, values.dim())])
    return {name: largest.amax(), **numbered(name, largest)}


def watch_gradients(node: Any, users: Mapping[Any, Sequence[Any]], extra: Numbers) -> None:
    """Have the gradient that comes back to each head's output measured in the coming backward pass.

    Args:
        node: of an attention; nothing is done where its heads cannot be told apart.
        users: the nodes that use a node's output.
        extra: where "grad_norm.h" (L2) and "grad_mean.h" of head h go: NaN until the backward pass has come by, and
            scaled as the loss is. Nothing that flows back is changed; the hook acts once and dies with the graph.
    """
    place, heads = _output_of(node, users)
    if place is None or not 1 <= heads <= MAX_HEADS:
        return
    extra.update({f"{name}.{head}": float("nan") for name in _GRADIENT for head in range(heads)})
    place.register_prehook(_note(heads, extra))


def _output_of(node: Any, users: Mapping[Any, Sequence[Any]]) -> tuple[Any, int]:
    """Return the node that puts out what the heads have found, and how many heads there are."""
    if operation(node).startswith("ScaledDotProduct"):
        query = saved(node, "query")
        return (node, query.shape[1]) if query is not None and query.dim() == 4 else (None, 0)
    weights = saved(node, "result")
    if weights is None or weights.dim() != 4:
        return None, 0
    queue = list(users.get(node, ()))
    for each in queue:
        if operation(each) == "Bmm":
            return each, weights.shape[1]
        if len(queue) < 32:
            queue.extend(users.get(each, ()))
    return None, 0


def _note(heads: int, extra: Numbers) -> Callable[[Sequence[torch.Tensor | None]], None]:
    open_ = [True]

    @torch.no_grad()
    def note(gradients: Sequence[torch.Tensor | None]) -> None:
        gradient = gradients[0] if gradients else None
        if not open_[0] or gradient is None:
            return
        open_[0] = False  # the graph may be used again (retain_graph)
        split = _split(gradient, heads)
        if split is not None:
            for name, values in zip(_GRADIENT, norms_and_means(split) or _by_torch(split), strict=True):
                extra.update(numbered(name, values))

    return note


def _by_torch(split: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the L2 norm and the mean of each head, [H], in float64 where the device has that."""
    wide = torch.float32 if split.device.type == "mps" else torch.float64
    rows = split.transpose(0, 1).reshape(split.shape[1], -1)
    return torch.linalg.vector_norm(rows, dim=1, dtype=wide), rows.mean(1, dtype=wide)


def _split(gradient: torch.Tensor, heads: int) -> torch.Tensor | None:
    """Return the gradient of the heads' output as [B, H, T, D]: it is that, or [B * H, T, D]."""
    if type(gradient) is not torch.Tensor or not measurable(gradient) or gradient.is_complex():
        return None
    if gradient.dim() == 3 and gradient.shape[0] % heads == 0:
        gradient = gradient.detach().reshape(-1, heads, *gradient.shape[1:])
    return gradient if gradient.dim() == 4 and gradient.shape[1] == heads else None
