"""Whether a loss pairs each prediction with each target: [N, 1] against [N] makes [N, N] terms.

torch's own losses keep both operands, expanded: their strides tell. A loss that is written by hand keeps the difference
only. It is larger than the prediction then, and a difference of two tensors that were each expanded along a dimension
of their own is a sum of a row and a column, which no ordinary [N, N] target makes it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gradmedic.probes.loss_graph import LossCall
from gradmedic.probes.node_values import behind, operation, parent, saved

_REGRESSION = frozenset({"mse", "l1", "smooth_l1", "huber"})
#: Rows and columns of the difference that are compared, at most, and elements of each pair of them.
_SIDE = 8
_DEPTH = 256
#: Two by two terms can be a row and a column by chance.
_SMALLEST = 3
#: Rounding of the difference, in units of the dtype's precision times the largest difference.
_ROUNDINGS = 8


@torch.no_grad()
def is_broadcast(call: LossCall) -> bool | torch.Tensor:
    """Whether prediction and target of a loss were expanded along different dimensions.

    Pairs that are asked for (`prediction[:, None] - target`) and weighed one by one are an objective of their own, such
    as quantile regression; unweighted, they teach the mean of the targets, whoever asked for them.

    Args:
        call: the loss call, before its backward pass.

    Returns:
        True or False, or a 0-d bool on the loss's device where values decide. No host synchronisation.
    """
    if call.kind not in _REGRESSION:
        return False
    if operation(call.node) in ("Pow", "Mul", "Abs"):
        return _pairs_all(call)
    one, other = (saved(call.node, name, near_loss=True) for name in ("self", "target"))
    if one is None or other is None or (call.weighted and _is_spread(_side(call.node))):
        return False
    repeated = [
        {at for at, (size, step) in enumerate(zip(each.shape, each.stride(), strict=True)) if size > 1 and step == 0}
        for each in (one, other)
    ]
    return bool(repeated[0] - repeated[1]) and bool(repeated[1] - repeated[0])


def terms_of(call: LossCall) -> float:
    """Return how many terms a loss has before it is reduced; NaN where that cannot be told."""
    kept = saved(call.node, "self", near_loss=True)
    return math.nan if kept is None else float(kept.numel())


def _pairs_all(call: LossCall) -> bool | torch.Tensor:
    """Judge a loss written by hand: by the shape of the prediction, and the values of the difference."""
    difference = saved(call.node, "self", near_loss=True)
    side = _side(parent(call.node))
    if difference is None or side is None or (call.weighted and _is_spread(side)):
        return False
    shape = _shape(side)
    if shape is None or len(shape) > difference.dim():
        return False
    padded = (1,) * (difference.dim() - len(shape)) + shape
    sizes = tuple(difference.shape)
    expanded = [at for at, size in enumerate(sizes) if size >= _SMALLEST and padded[at] == 1]
    pairs = [(a, b) for a in expanded for b, size in enumerate(sizes) if padded[b] == size == sizes[a]]
    verdict: bool | torch.Tensor = False
    for a, b in pairs:
        verdict = verdict | _row_and_column(difference, a, b)
    return verdict


def _row_and_column(difference: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """Whether values are f(a) + g(b), and differ along a: the target was repeated along b, and is not one constant."""
    part = difference.movedim((a, b), (0, 1))[:_SIDE, :_SIDE].flatten(2) if difference.dim() > 2 else difference
    if difference.dim() > 2:
        part = part[..., :: max(1, -(-part.shape[2] // _DEPTH))]
    else:
        part = part[:_SIDE, :_SIDE] if a == 0 else part.t()[:_SIDE, :_SIDE]
    along = part - part[:1]
    slack = _ROUNDINGS * torch.finfo(part.dtype).eps * part.abs().amax()
    return ((along - along[:, :1]).abs().amax() <= slack) & (along.abs().amax() > slack)


def _side(node: Any) -> Any:
    """Return the node that a difference, or a loss, gets the model's output from, before it was expanded."""
    edges = [each for each, _ in node.next_functions] if node is not None else []
    found = next((each for each in edges if each is not None), None)
    while operation(found) == "Expand":
        found = parent(found)
    return found


def _shape(node: Any) -> tuple[int, ...] | None:
    """Return the shape of what a node put out; None for a leaf, or where it cannot be told."""
    outputs = getattr(node, "_input_metadata", None)  # what backward takes is what forward gave
    if not outputs or len(outputs) != 1 or hasattr(node, "variable"):
        return None
    return tuple(int(size) for size in outputs[0].shape)


def _is_spread(node: Any) -> bool:
    """Whether the output was given a dimension of its own for the pairs: `[:, None]` or `unsqueeze`."""
    while node is not None and operation(node) != "Unsqueeze":
        further = parent(node)
        if behind(node, in_place=True) is node:
            return False
        node = further
    return node is not None
