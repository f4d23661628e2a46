"""Batch normalisation as the graph shows it: in which mode, over how many values, with which running statistics."""

from __future__ import annotations

from typing import Any

import torch

from gradmedic.probes.graph import GraphWalk
from gradmedic.probes.node_values import leaf_behind, operation, parent, saved, setting

#: Normalisations of one pass that are looked at.
MAX_NODES = 128

_KINDS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm", "BatchNormImpl")


def batch_norm_nodes(graph: GraphWalk) -> list[Any]:
    """Return the nodes of batch normalisation, at most 128 evenly chosen, in forward order.

    Instance normalisation is computed by the same operation, on one sample of batch times channels: left out.
    """
    found = [node for node in graph.nodes if operation(node) in _KINDS and not _of_instances(node)]
    return found[:: max(1, -(-len(found) // MAX_NODES))]


@torch.no_grad()
def batch_norm_numbers(node: Any) -> dict[str, torch.Tensor | float]:
    """Return the numbers of one batch normalisation.

    Args:
        node: of the graph, before its backward pass.

    Returns:
        "training" (whether it normalises by the batch, 1 or 0), "samples" (of the batch), "values" (of each channel:
        samples times positions), "trains" (whether its scale takes a gradient), "tracked" (whether it has running
        statistics) and "virgin" (whether these are 0 and 1 still, as they were made). What was not saved is left
        out. On the device; no host synchronisation.
    """
    given = saved(node, "input")
    mean, variance = saved(node, "running_mean"), saved(node, "running_var")
    training = setting(node, "training")
    if training is None and operation(node) == "CudnnBatchNorm":
        training = True  # cuDNN has no backward pass for the other mode
    numbers: dict[str, torch.Tensor | float] = {
        "trains": float(leaf_behind(parent(node, 1)) is not None),
        "tracked": float(mean is not None),
    }
    if training is not None:
        numbers["training"] = float(bool(training))
    if given is not None:
        numbers["samples"] = float(given.shape[0])
        numbers["values"] = float(given.numel() // given.shape[1])
    if mean is not None and variance is not None:
        numbers["virgin"] = ((mean == 0).all() & (variance == 1).all()).float()
    return numbers


def scale_of(node: Any) -> torch.Tensor | None:
    """Return the parameter that a normalisation scales by, itself; None where it has none or it takes no gradient."""
    leaf = getattr(parent(node, 1), "variable", None)
    return leaf if isinstance(leaf, torch.Tensor) else None


def _of_instances(node: Any) -> bool:
    """Whether [N, C, ...] came as [1, N * C, ...]: with a repeated scale, or with neither scale nor statistics."""
    given = saved(node, "input")
    if given is None or given.shape[0] != 1 or scale_of(node) is not None:
        return False
    return parent(node, 1) is not None or saved(node, "running_mean") is None
