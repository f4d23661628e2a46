"""What a batch is like, and which one it is: read off the tensors from outside that the first operations keep.

The first operations of a graph keep what they were given: ids of a lookup, the input of a linear layer or a
convolution. It shows whether a batch is out of the ordinary (a single token over and over, values of 1e30), and
whether the same batch comes again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_values import operation, parent, saved

#: Inputs of one graph that are looked at.
MAX_INPUTS = 4
#: Nodes in forward order among which they are looked for.
_MAX_NODES = 256
#: Elements that statistics of ids are taken over, at most; extremes are over all elements.
MAX_ELEMENTS = 2**14
_PRINT = 256
_GOLDEN = 0.6180339887498949
#: Operations that keep an input that comes from outside: (name of the saved tensor, its place among the inputs).
_KEEPERS = {
    "Addmm": ("mat1", 1), "Mm": ("self", 0), "Bmm": ("self", 0), "Convolution": ("input", 0),
    "NativeBatchNorm": ("input", 0), "NativeLayerNorm": ("input", 0), "MkldnnRnnLayer": ("input", 0),
    "CudnnRnn": ("input", 0),
}  # fmt: skip
_LOOKUPS = ("Embedding", "EmbeddingBag")


@torch.no_grad()
def batch_rows(nodes: Sequence[Any]) -> list[ModuleSample]:
    """Measure the inputs of a batch.

    Args:
        nodes: the graph's nodes in forward order.

    Returns:
        At most 4 rows of `what` "batch"; `call` counts the inputs, `leaf` is "ids" or "values". `extra` holds "count"
        (elements), "rows" (size of the first dimension), "fingerprint" (the same for equal batches); for ids
        "distinct", "top_share" (of the most frequent one); for values "max_abs", "rms" (of the finite ones),
        "nonfinite". 0-d tensors on the input's device; no host synchronisation.
    """
    made: list[ModuleSample] = []
    seen: set[int] = set()
    for node in nodes[:_MAX_NODES]:
        tensor = _given(node)
        if tensor is None or tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        ids = not tensor.is_floating_point()
        sample = ModuleSample("", "batch", len(made), "ids" if ids else "values")
        sample.extra |= {"count": float(tensor.numel()), "rows": float(tensor.shape[0] if tensor.dim() else 1)}
        sample.extra["fingerprint"] = _fingerprint(tensor)
        sample.extra |= _of_ids(tensor) if ids else _of_values(tensor)
        made.append(sample)
        if len(made) == MAX_INPUTS:
            break
    return made


def _given(node: Any) -> torch.Tensor | None:
    """Return what an operation was given from outside; None where that was computed, or is a weight."""
    kind = operation(node)
    if kind in _LOOKUPS:
        return saved(node, "indices")
    if kind not in _KEEPERS:
        return None
    name, place = _KEEPERS[kind]
    if len(node.next_functions) <= place or parent(node, place) is not None:
        return None
    tensor = saved(node, name)
    return tensor if tensor is not None and tensor.is_floating_point() else None


def _of_ids(tensor: torch.Tensor) -> dict[str, torch.Tensor | float]:
    flat = tensor.reshape(-1)
    ordered = flat[:: max(1, -(-flat.numel() // MAX_ELEMENTS))].sort().values
    size = ordered.numel()
    starts = torch.ones(size, dtype=torch.bool, device=flat.device)
    starts[1:] = ordered[1:] != ordered[:-1]
    # Length of each run of equal ids, at its last element: counted from the place where the run began.
    places = torch.arange(size, device=flat.device)
    began = torch.where(starts, places, 0).cummax(0).values
    return {"distinct": starts.sum(), "top_share": (places - began + 1).max() / size}


def _of_values(tensor: torch.Tensor) -> dict[str, torch.Tensor | float]:
    values = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    kept = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = torch.aminmax(kept)
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    return {
        "max_abs": torch.maximum(-low, high),
        "rms": torch.linalg.vector_norm(kept, dtype=wide) / kept.numel() ** 0.5,
        "nonfinite": (~torch.isfinite(values)).sum(),
    }


def _fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return a number that equal batches share, and different ones hardly ever: a sum, and a weighted sum of a part."""
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    flat = torch.nan_to_num(tensor.reshape(-1))
    # Places that follow the golden ratio: those of an even stride may all fall on blank margins of images.
    places = torch.arange(min(_PRINT, flat.numel()), device=tensor.device, dtype=wide)
    chosen = flat[((places * _GOLDEN).frac() * flat.numel()).long()].to(wide)
    return (chosen * (places + 1).sqrt().to(wide)).sum() + flat.sum(dtype=wide)
