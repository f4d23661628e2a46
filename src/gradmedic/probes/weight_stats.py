"""What is measured of a weight and of what its layer is given: scale, symmetry, and how the signal arrives."""

from __future__ import annotations

import math

import torch

from gradmedic.probes.node_values import leaf_behind, operation, parent
from gradmedic.probes.weight_layers import Layer

Numbers = dict[str, "torch.Tensor | float"]

#: Rows and columns of a weight whose likeness is looked at, samples and features of an input, evenly chosen.
MAX_ROWS, MAX_COLUMNS = 256, 4096
MAX_SAMPLES, MAX_FEATURES = 64, 4096


@torch.no_grad()
def weight_numbers(layer: Layer, *, last: bool = True) -> Numbers:
    """Return the numbers of a layer's row.

    Args:
        layer: before its backward pass.
        last: whether what it puts out is measured as well: that of other layers shows in the inputs of the next.

    Returns:
        "fan_in", "fan_out" (of initialisation schemes: times the size of a convolution's kernel), "outputs" (rows),
        "inputs" (columns), "convolution", "groups" (1 for a linear layer), "hidden" (whether its inputs were computed
        from parameters); of the weight "rms", "row_spread" and "column_spread" (rms distance of its rows, or columns,
        from the first of them, over the largest magnitude: 0 where all are the same); of what the layer is given
        "input_rms" and "input_spread" (rms over features of the standard deviation over samples; not of a single one),
        and for the last layer, if it is linear, "output_rms". What was not saved is left out. On the device; no host
        synchronisation.
    """
    weight = layer.weight.float() if layer.weight.dtype != torch.float64 else layer.weight
    kernel = math.prod(weight.shape[2:])
    # The transposed weight of a grouped convolution is [outputs / groups, inputs]; that of an ordinary one the reverse.
    outputs, inputs = weight.shape[0], weight.shape[1]
    return {
        "fan_in": float(inputs * kernel),
        "fan_out": float(outputs * kernel),
        "outputs": float(outputs),
        "inputs": float(inputs),
        "convolution": float(layer.convolution),
        "groups": float(layer.groups),
        "hidden": float(layer.hidden),
        "rms": torch.linalg.vector_norm(weight) / math.sqrt(weight.numel()),
        "row_spread": _spread_of_first(weight),
        "column_spread": _spread_of_first(weight.transpose(0, 1)),
        **_input_numbers(layer, last),
    }


def _spread_of_first(weight: torch.Tensor) -> torch.Tensor:
    """Return the rms distance of rows from the first row, over the largest magnitude; 0 for a weight of zeros."""
    rows = weight[:: -(-weight.shape[0] // MAX_ROWS)].flatten(1)
    rows = rows[:, :: -(-rows.shape[1] // MAX_COLUMNS)]
    distance = torch.linalg.vector_norm(rows - rows[:1]) / math.sqrt(rows.numel())
    largest = torch.linalg.vector_norm(rows, ord=math.inf)
    spread: torch.Tensor = distance / largest.clamp(min=torch.finfo(rows.dtype).tiny)
    return spread


def _input_numbers(layer: Layer, last: bool) -> Numbers:
    given = layer.given
    if given is None or given.is_complex() or given.dim() < 2:
        return {}
    samples = given[:: -(-given.shape[0] // MAX_SAMPLES)].flatten(1)
    samples = samples[:, :: -(-samples.shape[1] // MAX_FEATURES)].float()
    numbers: Numbers = {"input_rms": samples.square().mean().sqrt()}
    if samples.shape[0] > 1:
        numbers["input_spread"] = samples.var(0).mean().sqrt()
    output = _output(layer) if last and not layer.convolution else None
    if output is not None:
        numbers["output_rms"] = output.square().mean().sqrt()
    return numbers


def _output(layer: Layer) -> torch.Tensor | None:
    """Return what a linear layer puts out for some of its samples, computed again."""
    given, weight = layer.given, layer.weight
    if given is None or given.dim() != 2 or given.shape[1] != weight.shape[1]:
        return None
    made = given[:: -(-given.shape[0] // MAX_SAMPLES)].float() @ weight.float().t()
    bias = leaf_behind(parent(layer.node, 0)) if operation(layer.node) == "Addmm" else None
    return made if bias is None else made + bias.float()
