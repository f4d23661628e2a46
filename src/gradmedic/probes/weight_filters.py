"""How many filters of a convolution do anything, and how many do the same."""

from __future__ import annotations

import torch

from gradmedic.probes.weight_layers import Layer

#: Filters of one layer that are compared with each other, evenly chosen: the work grows with their square.
MAX_FILTERS = 256
#: Below this part of the median norm a filter is dead, and above this |cosine| it repeats another (rules.md).
DEAD, DUPLICATE = 1e-3, 0.99
#: Filters of fewer numbers are alike by chance: 1x1 filters of one channel always are.
_MIN_FAN_IN = 16
_MIN_FILTERS = 8


def comparable(layer: Layer) -> bool:
    """Whether a layer has filters that can be told apart: convolutions that mix channels, of enough numbers each."""
    weight = layer.weight
    outputs = weight.shape[0]
    return (
        layer.convolution
        and weight.shape[1] > 1
        and weight.numel() // outputs >= _MIN_FAN_IN
        and outputs >= _MIN_FILTERS
    )


@torch.no_grad()
def filter_numbers(weight: torch.Tensor) -> dict[str, torch.Tensor | float]:
    """Return what the filters of a convolution look like.

    Args:
        weight: [filters, channels, ...], at least one filter.

    Returns:
        "filters" (those compared, at most 256), "median_norm", "dead_share" (norm below a thousandth of the median, or
        of a tenth of the largest where most are dead), "duplicate_share" (living filters with |cosine| above 0.99 to
        an earlier living one) and "effective_rank" (square of the sum over the sum of squares of the Gram matrix's
        eigenvalues; from 1 up to the number of filters). Ranks and shares are 0 where all filters are zero. On the
        device; no host synchronisation.
    """
    chosen = weight[:: -(-weight.shape[0] // MAX_FILTERS)].flatten(1).float()
    norms = torch.linalg.vector_norm(chosen, dim=1)
    typical = torch.maximum(norms.median(), norms.max() / 10)
    dead = norms < DEAD * typical
    alive = (norms > 0) & ~dead
    unit = torch.where(alive[:, None], chosen / norms.clamp(min=torch.finfo(norms.dtype).tiny)[:, None], 0.0)
    cosines = (unit @ unit.t()).abs().tril(-1)
    duplicate = (cosines > DUPLICATE).any(1)
    # Scaled to a largest norm of 1: squares of squares of small weights would leave the range of float32.
    scaled = chosen / norms.max().clamp(min=torch.finfo(norms.dtype).tiny)
    gram = scaled @ scaled.t()
    total, squares = gram.diagonal().sum(), gram.square().sum()
    return {
        "filters": float(chosen.shape[0]),
        "median_norm": norms.median(),
        "dead_share": dead.float().mean(),
        "duplicate_share": duplicate.float().mean(),
        "effective_rank": total.square() / squares.clamp(min=torch.finfo(norms.dtype).tiny),
    }
