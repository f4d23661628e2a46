"""What a model is fed, seen from the graph: do its inputs, and its predictions, differ between samples at all?

The nodes that use data and not what another node has computed (the first layer, an embedding) have saved that data, in
a functional model as well as in one of modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.probes.loss_graph import LossCall
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf, place_of
from gradmedic.probes.node_values import operation, saved

#: Inputs that are looked at, rows of each, and elements of a row.
MAX_INPUTS = 8
MAX_ROWS = 64
MAX_ELEMENTS = 4096

#: Where an operation takes data: place among its inputs, and the name under which it has saved it.
_OPERANDS: dict[str, tuple[int, str]] = {
    "Addmm": (1, "mat1"),
    "Mm": (0, "self"),
    "Bmm": (0, "self"),
    "Convolution": (0, "input"),
    "NativeLayerNorm": (0, "input"),
    "NativeBatchNorm": (0, "input"),
    "MkldnnRnnLayer": (0, "input"),
    "CudnnRnn": (0, "input"),
}


@torch.no_grad()
def input_rows(nodes: Sequence[Any], name_of: NameOf) -> list[ModuleSample]:
    """Measure how much the inputs of a model differ between the samples of a batch.

    Args:
        nodes: the graph's nodes in forward order, before the backward pass.
        name_of: returns (parameter name, module name), or None.

    Returns:
        Rows of `what` "input" (`leaf` is the operation), at most 8. `extra`: "rows" (samples that were compared) and
        "row_spread" (largest difference of one feature between them, over the largest magnitude; NaN for positions).
        On the inputs' device; no host synchronisation.
    """
    made: list[ModuleSample] = []
    for node in nodes:
        data = _data_of(node)
        if data is None:
            continue
        numbers: dict[str, torch.Tensor | float] = {
            "rows": float(min(data.shape[0], MAX_ROWS)),
            "row_spread": row_spread(data) if data.is_floating_point() else _id_spread(data),
        }
        module = place_of(node, name_of).module
        made.append(ModuleSample(module, "input", len(made), operation(node), extra=numbers))
        if len(made) == MAX_INPUTS:
            break
    return made


@torch.no_grad()
def prediction_spread(call: LossCall) -> dict[str, torch.Tensor | float]:
    """Return how much what a loss is given differs between samples, as "row_spread"; {} where it is unknown."""
    name = "result" if operation(call.node) == "LogSoftmax" else "self"
    given = saved(call.node, name, near_loss=True)
    if given is None or given.dim() == 0 or not given.is_floating_point() or given.shape[0] < 2:
        return {}
    return {"row_spread": row_spread(given)}


def row_spread(values: torch.Tensor) -> torch.Tensor:
    """Return the largest difference of one feature between rows, over the largest magnitude.

    Args:
        values: [rows, ...]; at most 64 rows and 4,096 elements of each are looked at, evenly chosen.

    Returns:
        0-d, on the values' device: 0 where all rows are the same, at most 2.
    """
    rows = values[:: max(1, -(-values.shape[0] // MAX_ROWS))].reshape(-1, values[0].numel())
    rows = rows[:, :: max(1, -(-rows.shape[1] // MAX_ELEMENTS))]
    rows = rows if rows.dtype == torch.float64 else rows.float()
    widest = (rows.amax(0) - rows.amin(0)).amax()
    return widest / rows.abs().amax().clamp(min=torch.finfo(rows.dtype).tiny)


def _data_of(node: Any) -> torch.Tensor | None:
    kind = operation(node)
    if kind == "Embedding":
        data = saved(node, "indices")
    else:
        place, name = _OPERANDS.get(kind, (0, ""))
        inputs = node.next_functions
        if not name or place >= len(inputs) or inputs[place][0] is not None:
            return None
        data = saved(node, name)
    if data is None or data.dim() == 0 or data.shape[0] < 2 or data.is_complex():
        return None
    # A tensor that was expanded over the batch (positions, learned queries) is meant to be the same for all.
    return data if data.stride(0) != 0 else None


def _id_spread(ids: torch.Tensor) -> torch.Tensor:
    spread = row_spread(ids)
    if ids.dim() > 1:
        return spread
    places = torch.arange(ids.shape[0], device=ids.device)
    return torch.where((ids == places).all(), math.nan, spread)
