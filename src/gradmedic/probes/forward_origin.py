"""Where a non-finite loss came from: data, a parameter, a forward operation, or the loss itself.

When a loss is not finite, the graph that `backward()` is about to use still holds what the forward pass saved for it.
Walking the nodes in forward order and looking at the saved values finds the first operation whose inputs were finite
and whose output was not, in the very step in which it happened, with no hook on any module and no replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.probes.graph import GraphWalk, sequence_number, walk
from gradmedic.probes.origin import Origin
from gradmedic.probes.origin_places import NameOf, Places, is_parameter_view
from gradmedic.probes.origin_saved import Saved, is_readable, range_of, saved_tensors
from gradmedic.probes.suspects import may_make_it, op_name, outside_domain, product_is_finite, surely_makes_it

_MAX_ROWS = 10


def find_forward_origin(roots: Sequence[torch.Tensor], name_of: NameOf) -> Origin:
    """Find where a non-finite loss came from, before `backward()` frees its graph.

    Args:
        roots: the tensors on which `backward` is about to be called.
        name_of: returns (parameter name, module name) of a watched parameter, or None.

    Returns:
        The origin. Reads values on the host (one synchronisation per saved tensor): call it once, when a loss is lost.
    """
    with torch.no_grad():
        for root in roots:
            if root.grad_fn is None:
                return _leaf_root(root, name_of)
        return _Search(walk(roots), name_of).run()


class _Search:
    """One search through one graph."""

    def __init__(self, graph: GraphWalk, name_of: NameOf) -> None:
        self._graph = graph
        self._name_of = name_of
        self._places = Places(graph, name_of)

    def run(self) -> Origin:
        # Parameters whose values are not finite explain everything behind them.
        sick = [leaf for leaf in self._graph.order if is_readable(leaf) and not bool(torch.isfinite(leaf).all())]
        weights = [leaf for leaf in sick if isinstance(leaf, torch.nn.Parameter) or self._name_of(leaf)]
        if weights:
            return self._parameter(weights)
        if sick:  # an input that asks for a gradient of its own
            return self._data(sick[0], self._places.first_use(sick[0]))
        clean: Any = None  # the last node, in forward order, whose saved inputs are all finite
        for node in self._graph.nodes:
            saved = saved_tensors(node)
            bad = [each for each in saved if not each.finite]
            if bad:
                return self._explain(node, saved, bad)
            if saved:
                clean = node
        return self._after(clean)

    def _parameter(self, sick: list[torch.Tensor]) -> Origin:
        names = [found[0] for leaf in sick if (found := self._name_of(leaf))]
        origin = Origin.of("parameter", sick[0])
        origin.where = tuple(names[:8])
        origin.detail = "the weights themselves are not finite"
        return origin

    def _explain(self, node: Any, saved: list[Saved], bad: list[Saved]) -> Origin:
        inputs = [each for each in bad if not each.is_result]
        if not inputs:  # only the output is bad: this operation, unless it merely hands values on
            culprit = self._violator_behind(node) or (node if may_make_it(node) else None)
            return self._operation(culprit or self._source_behind(node) or node, bad[0].tensor, saved)
        parents = [parent for parent, _ in node.next_functions]
        if all(each.name == "_saved_target" for each in inputs):
            return self._data(inputs[0].whole, node, "target")
        if all(each.name == "_saved_other" for each in inputs) and len(parents) > 1 and parents[1] is None:
            return self._operation(node, inputs[0].tensor, saved)  # a constant factor, mask or divisor
        producers = [parent for parent in parents if parent is not None and not hasattr(parent, "variable")]
        producers = [parent for parent in producers if not is_parameter_view(parent)]
        if not producers:
            return self._data(inputs[0].whole, node)
        culprit = self._source_behind(node)
        if culprit is not None and product_is_finite(culprit) and self._meets_constant(node, culprit):
            return self._data(inputs[0].whole, node, "target" if self._places.in_loss(node) else "input")
        return self._operation(culprit or producers[0], inputs[0].tensor, saved)

    def _meets_constant(self, node: Any, culprit: Any) -> bool:
        """Whether, between two nodes, what the model computed is joined with values that nothing was computed for."""
        queue, seen = [node], {node}
        for each in queue:
            parents = [parent for parent, _ in each.next_functions]
            if each is not node and len(parents) > 1 and None in parents:
                return True
            fresh = [p for p in parents if p is not None and p not in seen and p is not culprit]
            seen.update(fresh)
            queue.extend(fresh[:8])
        return False

    def _source_behind(self, node: Any) -> Any:
        """Return the latest operation behind `node` that can make such a value and was given finite inputs."""
        candidates: list[Any] = []
        queue, seen = [node], {node}
        for each in queue:
            for parent, _ in each.next_functions:
                if parent is None or parent in seen or hasattr(parent, "variable"):
                    continue
                seen.add(parent)
                saved = [item for item in saved_tensors(parent) if not item.is_result]
                if may_make_it(parent) and not is_parameter_view(parent):
                    candidates.append(parent)
                # Nothing shows that its inputs were finite (a product keeps a constant factor only): look further back.
                if all(item.name == "_saved_other" for item in saved):
                    queue.append(parent)
        certain = [each for each in candidates if surely_makes_it(each)]
        if certain:
            return min(certain, key=sequence_number)
        with_proof = [each for each in candidates if saved_tensors(each)]
        return max(with_proof or candidates, key=sequence_number, default=None)

    def _violator_behind(self, node: Any, limit: int = 32) -> Any:
        """Return the nearest operation behind `node` whose saved input is finite and lies outside its domain."""
        queue, seen = [node], {node}
        for each in queue:
            if each is not node and outside_domain(each):
                return each
            for parent, _ in each.next_functions:
                if parent is not None and parent not in seen and not hasattr(parent, "variable") and len(queue) < limit:
                    seen.add(parent)
                    queue.append(parent)
        return None

    def _data(self, tensor: torch.Tensor, node: Any, what: str = "input") -> Origin:
        origin = Origin.of("data", tensor)
        rows = (~torch.isfinite(tensor)).reshape(tensor.shape[0], -1).any(1) if tensor.dim() else None
        if rows is not None:
            origin.rows = tuple(int(row) for row in rows.nonzero().flatten()[:_MAX_ROWS])
        place = self._places.of(node)
        origin.where = (what,)
        origin.detail = f"the {what} of {place} holds non-finite values" if place else f"the {what} is not finite"
        if tensor.dtype == torch.float16 and origin.inf_count:  # the cast leaves no node: what came before it is gone
            origin.detail += "; in float16, whose largest number is 65504"
        return origin

    def _operation(self, node: Any, value: torch.Tensor, saved: list[Saved]) -> Origin:
        kind = "loss" if self._places.in_loss(node) else "forward"
        origin = Origin.of(kind, value)
        place = self._places.of(node)
        origin.where = ("loss",) if kind == "loss" else ((place,) if place else ())
        origin.op = op_name(node)
        origin.detail = range_of(saved_tensors(node) or saved)
        return origin

    def _after(self, clean: Any) -> Origin:
        """Everything saved is finite: the value was lost behind the last node that saved anything."""
        certain = next((each for each in self._graph.nodes if surely_makes_it(each)), None)
        if certain is not None:
            clean = certain
        number = sequence_number(clean) if clean is not None else -1
        later = [each for each in self._graph.nodes if sequence_number(each) >= number]
        sources = [each for each in later if may_make_it(each) and not is_parameter_view(each)]
        proven = [each for each in sources if saved_tensors(each)]
        node = (proven or sources or later or [None])[0]
        if node is None:
            return Origin("loss", ("loss",), detail="nothing was saved that shows more")
        leaf_value = torch.zeros(())
        origin = self._operation(node, leaf_value, [])
        origin.shape, origin.dtype, origin.nan_count, origin.inf_count = (), "", 0, 0
        return origin


def _leaf_root(root: torch.Tensor, name_of: NameOf) -> Origin:
    origin = Origin.of("parameter", root)
    found = name_of(root)
    origin.where = (found[0],) if found else ()
    return origin
