"""Walks over the autograd graph of a loss: what it can reach, in which order.

The graph that `backward()` is about to use holds exact evidence, with no hook on any module: which parameters the loss
reaches, and, by the sequence numbers of the nodes, in which order the forward pass used them. A walk costs
microseconds a node and is done for the first backward calls only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

#: AccumulateGrad nodes carry the largest sequence number there is; forward nodes count up from 0 in each thread.
_NO_SEQUENCE = 2**63

#: A walk stops here; a graph of this size belongs to an unrolled loop whose first nodes tell as much.
MAX_NODES = 200_000


@dataclass(slots=True)
class GraphWalk:
    """What a walk from a loss has found.

    Attributes:
        order: the parameters that the loss reaches, in the order in which the forward pass first used them.
        nodes: the graph's nodes by ascending sequence number (kept alive by this list only).
        users: for each entry of `order`, the smallest sequence number of a node that uses it.
        complete: False when the graph was larger than the bound.
    """

    order: list[torch.Tensor] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    complete: bool = True


def sequence_number(node: Any) -> int:
    """Return a node's place in forward order; nodes without one (leaves, some custom ones) come last."""
    try:
        number = int(node._sequence_nr())
    except (AttributeError, RuntimeError):
        return _NO_SEQUENCE
    return number if 0 <= number < _NO_SEQUENCE else _NO_SEQUENCE


def walk(roots: Iterable[torch.Tensor], limit: int = MAX_NODES) -> GraphWalk:
    """Walk the graph behind the roots.

    Args:
        roots: the tensors on which `backward` is called; those without a graph are left out.
        limit: bound on the number of nodes.

    Returns:
        The reachable leaves in execution order. Nothing is computed, nothing is read from a device.
    """
    found = GraphWalk()
    first_use: dict[int, tuple[int, torch.Tensor]] = {}
    seen: set[Any] = set()
    stack: list[Any] = []
    for root in roots:
        if root.grad_fn is not None:
            stack.append(root.grad_fn)
        elif root.requires_grad:
            first_use[id(root)] = (0, root)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if len(seen) >= limit:
            found.complete = False
            break
        seen.add(node)
        number = sequence_number(node)
        for parent, _ in node.next_functions:
            if parent is None:
                continue
            leaf = getattr(parent, "variable", None)
            if leaf is None:
                stack.append(parent)
            elif id(leaf) not in first_use or number < first_use[id(leaf)][0]:
                first_use[id(leaf)] = (number, leaf)
    uses = sorted(first_use.values(), key=lambda use: use[0])
    found.order = [leaf for _, leaf in uses]
    found.users = [number for number, _ in uses]
    found.nodes = sorted(seen, key=sequence_number)
    return found


def walked_once(roots: Sequence[torch.Tensor]) -> Callable[[], GraphWalk]:
    """Return a function that walks when it is first asked, and has the same answer from then on."""
    return functools.cache(lambda: walk(roots))


def reaches(root: torch.Tensor, sequence_numbers: set[int], limit: int = 64) -> bool:
    """Whether one of the nodes with these sequence numbers lies within a few steps behind the root.

    Used to tell whether a loss came out of `GradScaler.scale`, also when it was divided or summed since.
    """
    if root.grad_fn is None:
        return False
    queue: list[Any] = [root.grad_fn]
    for node in queue:
        if sequence_number(node) in sequence_numbers:
            return True
        if len(queue) < limit:
            queue.extend(parent for parent, _ in node.next_functions if parent is not None)
    return False


def nearest_parameter(roots: Iterable[torch.Tensor], limit: int = 4096) -> torch.nn.Parameter | None:
    """Return the parameter that is reached first from the roots, level by level; None when there is none near.

    It tells models apart without a walk over the whole graph: that of a last layer is a few nodes behind its loss, and
    the same one in every step.
    """
    level = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set(level)
    while level and len(seen) < limit:
        below: list[Any] = []
        for node in level:
            for parent, _ in node.next_functions:
                if parent is None or parent in seen:
                    continue
                if isinstance(leaf := getattr(parent, "variable", None), torch.nn.Parameter):
                    return leaf
                seen.add(parent)
                below.append(parent)
        level = below
    return None


def direct_leaves(node: Any, depth: int = 3) -> list[torch.Tensor]:
    """Return the leaves that a node uses itself, looking through a few views (a transposed weight, a cast)."""
    leaves: list[torch.Tensor] = []
    level: Sequence[Any] = [node]
    for _ in range(depth):
        below: list[Any] = []
        for each in level:
            for parent, _ in each.next_functions:
                if parent is None:
                    continue
                leaf = getattr(parent, "variable", None)
                if leaf is not None:
                    leaves.append(leaf)
                elif _is_view(parent):
                    below.append(parent)
        level = below
    return leaves


def rests_on_leaves(node: Any, depth: int = 3) -> bool:
    """Whether a node uses nothing but leaves and constants, itself or through a few views of them."""
    for parent, _ in node.next_functions:
        if parent is None or hasattr(parent, "variable"):
            continue
        if depth == 1 or not _is_view(parent) or not rests_on_leaves(parent, depth - 1):
            return False
    return True


_VIEWS = ("TBackward", "Transpose", "View", "Reshape", "ToCopy", "Expand", "Permute", "AsStrided", "Unsqueeze", "Slice")


def _is_view(node: Any) -> bool:
    return bool(node.name().startswith(_VIEWS))


def computes_in(graph: GraphWalk, dtype: torch.dtype) -> bool:
    """Return whether any gradient inside the graph has this dtype, autocast's casts included."""
    return any(
        entry is not None and getattr(entry, "dtype", None) == dtype
        for node in graph.nodes
        for entry in getattr(node, "_input_metadata", ())
    )
