"""Where in the model a node of the graph is, for the search for a non-finite value's origin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradmedic.probes.graph import GraphWalk, direct_leaves, rests_on_leaves, sequence_number

NameOf = Callable[[torch.Tensor], tuple[str, str] | None]


class Places:
    """Names the places of nodes in one graph.

    Args:
        graph: the graph, walked.
        name_of: returns (parameter name, module name) of a watched parameter, or None.
    """

    def __init__(self, graph: GraphWalk, name_of: NameOf) -> None:
        self._graph = graph
        self._name_of = name_of

    def first_use(self, leaf: torch.Tensor) -> Any:
        """Return the node that uses a leaf first."""
        at = next(at for at, each in enumerate(self._graph.order) if each is leaf)
        number = self._graph.users[at]
        return next((node for node in self._graph.nodes if sequence_number(node) == number), self._graph.nodes[0])

    def in_loss(self, node: Any) -> bool:
        """Whether a node comes after all uses of parameters."""
        uses = [sequence_number(each) for each in self._graph.nodes if direct_leaves(each, depth=1)]
        return sequence_number(node) > max((use for use in uses if use < 2**62), default=-1)

    def of(self, node: Any) -> str:
        """Return the module of the parameter that the node uses itself, or that was used last before it."""
        for leaf in direct_leaves(node):
            found = self._name_of(leaf)
            if found:
                return found[1] or found[0]
        number = sequence_number(node)
        before = [leaf for leaf, use in zip(self._graph.order, self._graph.users, strict=True) if use <= number]
        for leaf in reversed(before):
            found = self._name_of(leaf)
            if found:
                return found[1] or found[0]
        return ""


def is_parameter_view(node: Any) -> bool:
    """Whether a node makes something of parameters only: a transposed weight, also behind an autocast's cast."""
    return bool(direct_leaves(node)) and rests_on_leaves(node)
