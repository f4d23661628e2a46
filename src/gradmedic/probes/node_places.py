"""Names for nodes of the autograd graph: the module whose parameter was used last before them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from gradmedic.probes.graph import direct_leaves, sequence_number

NameOf = Callable[[torch.Tensor], tuple[str, str] | None]

_MAX_NODES = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is.

    Attributes:
        module: name of the module in front of it; the parameter's own where it has no module; "" when unknown.
        node: the node that uses that module's parameter, or None.
    """

    module: str = ""
    node: Any = None


def place_of(node: Any, name_of: NameOf) -> Place:
    """Find the parameter that was used last on a node's own way through the forward pass.

    Args:
        node: a node of the graph.
        name_of: returns (parameter name, module name) of a watched parameter, or None.

    Returns:
        Its module. The latest of 64 nodes behind this one that use a parameter themselves; nothing is computed.
    """
    # The latest operations first, so that a residual connection does not lead past the layers that it skips.
    ties = count()
    waiting = [(-sequence_number(node), next(ties), node)]
    seen = {node}
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        _, _, each = heapq.heappop(waiting)
        for leaf in direct_leaves(each):
            found = name_of(leaf)
            if found is not None:
                return Place(found[1] or found[0], each)
        for parent, _ in each.next_functions:
            if parent is not None and parent not in seen and not hasattr(parent, "variable"):
                seen.add(parent)
                heapq.heappush(waiting, (-sequence_number(parent), next(ties), parent))
    return Place()
