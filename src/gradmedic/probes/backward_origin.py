"""Where the backward pass will lose its gradients: an operation whose derivative is infinite at a finite value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.probes.graph import walk
from gradmedic.probes.origin import Origin
from gradmedic.probes.origin_places import NameOf, Places
from gradmedic.probes.origin_saved import Saved, range_of, saved_tensors
from gradmedic.probes.slopes import may_be_steep, steep_elements
from gradmedic.probes.suspects import op_name


def find_backward_origin(roots: Sequence[torch.Tensor], name_of: NameOf) -> Origin | None:
    """Find the operation whose derivative will make the gradients non-finite, whatever the loss scale.

    Args:
        roots: the tensors, finite, on which `backward` is about to be called.
        name_of: returns (parameter name, module name) of a watched parameter, or None.

    Returns:
        The operation that the backward pass meets first; None when every derivative is finite. Reads values on the
        host: call it only when gradients have been lost already.
    """
    with torch.no_grad():
        graph = walk(roots)
        for node in reversed(graph.nodes):
            if may_be_steep(node):
                saved = saved_tensors(node)
                steep = steep_elements(node, {each.name.removeprefix("_saved_"): each.tensor for each in saved})
                if steep is not None and bool(steep.any()):
                    return _steep(node, steep, saved, Places(graph, name_of))
    return None


def _steep(node: Any, where: torch.Tensor, saved: list[Saved], places: Places) -> Origin:
    """Describe an operation whose derivative is not finite at these elements."""
    count = int(where.sum())
    origin = Origin("backward", op=op_name(node), shape=tuple(where.shape), nan_count=count)
    origin.dtype = str(saved[0].tensor.dtype).removeprefix("torch.")
    place = "loss" if places.in_loss(node) else places.of(node)
    origin.where = (place,) if place else ()
    origin.detail = f"its derivative is not finite at {count} of {where.numel()} elements"
    given = range_of(saved)
    origin.detail += f"; {given}" if given else ""
    return origin
