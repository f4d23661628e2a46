"""Weights, filters and normalisations of sampled steps, as the graph of a backward pass shows them.

Nothing is hooked, and nothing needs to be known of the model beforehand: the leaves of the graph are measured where the
forward pass uses them, and named when the step ends. By then also the models of an unmodified script are known, which
are looked for when its optimizer first steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gradmedic.probes.batch_norms import batch_norm_nodes, batch_norm_numbers, scale_of
from gradmedic.probes.graph import GraphWalk, walk
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf, place_of
from gradmedic.probes.weight_filters import comparable, filter_numbers
from gradmedic.probes.weight_layers import Layer, layers
from gradmedic.probes.weight_stats import weight_numbers
from gradmedic.stats.parts import has_memory

#: In the first steps a weight is measured when it is seen for the first time, and after two updates.
_SIGHTS = (0, 2)
#: Layers of one pass that are measured, evenly chosen in forward order.
MAX_LAYERS = 128


@dataclass(slots=True)
class _Unnamed:
    """A measurement of a tensor whose name may not be known yet."""

    sample: ModuleSample
    leaf: weakref.ref[torch.Tensor] | None = None


class WeightProbe:
    """Measures the weights behind the backward passes of sampled steps.

    Args:
        name_of: returns (parameter name, module name) of a watched parameter, or None.
        failed: is told of a fault of ours; the probe is then off.
    """

    def __init__(self, name_of: NameOf, failed: Callable[[str, Exception], None]) -> None:
        self.off = False
        self._name_of = name_of
        self._failed = failed
        self._taken: list[_Unnamed] = []
        self._seen: set[int] = set()
        self._norms: dict[str, int] = {}
        self._sights: dict[int, int] = {}

    def sample(
        self, roots: Sequence[torch.Tensor], walked: Callable[[], GraphWalk] | None = None, *, first: bool
    ) -> None:
        """Measure what is behind these roots.

        Rows of `what` "weights" (scale, symmetry and inputs of layers: only in a run's first steps), "filters" (of
        convolutions) and "batch_norm" are made; values stay on the device. A weight that was measured in an earlier
        pass of the same step is not measured again.

        Args:
            roots: the tensors on which `backward` is about to be called, in a sampled step.
            walked: returns what a walk from them finds; None to have it walked here.
            first: whether this is one of the first steps.
        """
        if self.off or _traced(roots):
            return
        try:
            with torch.no_grad():
                self._measure(walk(roots) if walked is None else walked(), first)
        except Exception as error:  # graphs of any kind may come
            self.off = True
            self._forget()
            self._failed("weights", error)

    def take(self) -> list[ModuleSample]:
        """Return what was measured in the step that ends; tensors that no watched model has are left out."""
        taken = self._taken
        self._forget()
        return [each.sample for each in taken if self._name(each)]

    def _forget(self) -> None:
        self._taken, self._seen, self._norms = [], set(), {}

    def _measure(self, graph: GraphWalk, first: bool) -> None:
        found = [layer for layer in layers(graph) if id(layer.leaf) not in self._seen and _there(layer)]
        chosen = found[:: max(1, -(-len(found) // MAX_LAYERS))]
        for order, layer in enumerate(chosen):
            self._seen.add(id(layer.leaf))
            sight = self._sights.get(id(layer.leaf), 0)
            if first:
                self._sights[id(layer.leaf)] = sight + 1
            if first and sight in _SIGHTS:
                numbers = weight_numbers(layer, last=layer is chosen[-1])
                self._add("weights", layer.leaf, numbers | {"order": float(order)})
            if comparable(layer):
                self._add("filters", layer.leaf, filter_numbers(layer.weight))
        for node in batch_norm_nodes(graph):
            scale = scale_of(node)
            sample = ModuleSample("", "batch_norm", extra=batch_norm_numbers(node))
            if scale is None:  # no parameter of its own: named by the one in front of it
                sample.module = place_of(node, self._name_of).module
            self._taken.append(_Unnamed(sample, None if scale is None else weakref.ref(scale)))

    def _add(self, what: str, leaf: torch.Tensor, extra: dict[str, torch.Tensor | float]) -> None:
        self._taken.append(_Unnamed(ModuleSample("", what, extra=extra), weakref.ref(leaf)))

    def _name(self, each: _Unnamed) -> bool:
        if each.leaf is not None:
            leaf = each.leaf()
            found = None if leaf is None else self._name_of(leaf)
            if found is None:
                return False
            each.sample.module = found[1] or found[0]
            each.sample.leaf = found[0].rpartition(".")[2] if each.sample.what != "batch_norm" else "0"
        if each.sample.what == "batch_norm":
            key = each.sample.module
            each.sample.call = self._norms.get(key, 0)
            self._norms[key] = each.sample.call + 1
        return True


def _there(layer: Layer) -> bool:
    weight = layer.weight
    plain = type(layer.leaf) in (torch.Tensor, torch.nn.Parameter) and weight.layout is torch.strided
    real = not weight.is_meta and weight.numel() > 0 and not weight.is_complex()
    return plain and real and not torch._C._functorch.is_functorch_wrapped_tensor(weight) and has_memory(weight)


def _traced(roots: Sequence[torch.Tensor]) -> bool:
    if torch._C._get_tracing_state() is not None:
        return True
    return any(root.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(root) for root in roots)
