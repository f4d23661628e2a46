"""Which weights the layers of a graph multiply by, in what layout, and what they are multiplied with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.probes.graph import GraphWalk
from gradmedic.probes.node_values import operation, parent, saved, setting

_CONVOLUTIONS = ("Convolution", "ConvolutionOverrideable", "MkldnnConvolution", "CudnnConvolution", "ThnnConv2D")
#: By operation: the place of its second factor among its inputs, and the name of the saved first one.
_PRODUCTS = {"Addmm": (2, "mat1"), "Mm": (1, "self")}
_CAST_DEPTH = 3


@dataclass(slots=True)
class Layer:
    """A weight in the place where the forward pass uses it.

    Attributes:
        leaf: the parameter itself.
        weight: the same values as [outputs, inputs, ...]: a view.
        given: what the layer was given, [rows, inputs] or [batch, channels, ...]; None where it was not saved.
        convolution: whether it convolves.
        groups: of a convolution; 1 otherwise.
        node: the node of the graph that multiplies.
        hidden: whether what it was given was computed from parameters, and is not the data themselves.
    """

    leaf: torch.Tensor
    weight: torch.Tensor
    given: torch.Tensor | None
    convolution: bool
    groups: int
    node: Any
    hidden: bool


def layers(graph: GraphWalk) -> Iterator[Layer]:
    """Yield the linear and convolutional layers of a graph in forward order, each weight where it is used first.

    Args:
        graph: a walked graph, before its backward pass.

    Returns:
        Layers whose weight is a leaf of the graph, as it is or through views and casts: weights that are computed from
        parameters (by a mask, a reparametrisation) are none. Nothing is computed.
    """
    known: set[int] = set()
    for node in graph.nodes:
        layer = _layer(node)
        if layer is not None and id(layer.leaf) not in known:
            known.add(id(layer.leaf))
            yield layer


def _layer(node: Any) -> Layer | None:
    kind = operation(node)
    if kind in _PRODUCTS:
        return _linear(node, *_PRODUCTS[kind])
    return _convolution(node) if kind in _CONVOLUTIONS else None


def _linear(node: Any, place: int, given: str) -> Layer | None:
    leaf, transposed = _leaf(parent(node, place))
    if leaf is None or leaf.dim() != 2:
        return None
    weight = leaf.detach()
    # Products are given @ factor with a factor [inputs, outputs]: a transposed leaf is stored the other way round.
    hidden = parent(node, place - 1) is not None
    return Layer(leaf, weight if transposed else weight.t(), saved(node, given), False, 1, node, hidden)


def _convolution(node: Any) -> Layer | None:
    leaf, _ = _leaf(parent(node, 1))
    if leaf is None or leaf.dim() < 3:
        return None
    groups = int(setting(node, "groups") or 1)
    weight = leaf.detach()
    if setting(node, "transposed"):
        weight = weight.transpose(0, 1)
    return Layer(leaf, weight, saved(node, "input"), True, groups, node, parent(node, 0) is not None)


def _leaf(node: Any) -> tuple[torch.Tensor | None, bool]:
    """Return the leaf that is behind a transposition or a cast, and whether it was transposed."""
    transposed = False
    for _ in range(_CAST_DEPTH):
        if node is None:
            return None, False
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return leaf, transposed
        name = str(node.name())
        if name.startswith(("TBackward", "Transpose", "Permute")):
            transposed = not transposed
        elif not name.startswith("ToCopy"):
            return None, False
        node = parent(node)
    leaf = getattr(node, "variable", None)
    return leaf, transposed
