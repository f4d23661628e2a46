"""How much of a graph was made in earlier steps: nodes that are walked again because a tensor was never detached."""

from __future__ import annotations

from gradmedic.probes.graph import GraphWalk, sequence_number
from gradmedic.probes.module_stats import ModuleSample

_NO_SEQUENCE = 2**62


class CarriedGraph:
    """Follows the graphs of sampled backward passes by the sequence numbers of their nodes.

    Torch numbers nodes as a thread makes them. What a graph has at or below the highest number of the pass that was
    looked at before is older than that pass. Nothing is read from a device.
    """

    def __init__(self) -> None:
        self._highest = -1
        self._any = False

    def rows(self, graph: GraphWalk) -> list[ModuleSample]:
        """Count the old nodes of a graph.

        Args:
            graph: what a walk from the roots of a backward pass has found, just before it.

        Returns:
            One row of `what` "graph", with "nodes" and "carried" (those made before the last pass that was looked at)
            in `extra`; none as long as no graph had old nodes.
        """
        numbers = [number for node in graph.nodes if (number := sequence_number(node)) < _NO_SEQUENCE]
        carried = sum(number <= self._highest for number in numbers)
        self._highest = max(numbers, default=self._highest)
        self._any = self._any or carried > 0
        if not self._any:
            return []
        return [ModuleSample("", "graph", extra={"nodes": float(len(graph.nodes)), "carried": float(carried)})]
