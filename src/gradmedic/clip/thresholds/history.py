"""A ring of the last values of a signal, with statistics that need no read-back; the current value is never in it."""

from __future__ import annotations

import math

import torch

Ring = dict[str, torch.Tensor]


def new_ring(window: int, size: tuple[int, ...], device: torch.device) -> Ring:
    """Return an empty ring for signals of this shape; float64, unfilled places are infinite."""
    return {
        "values": torch.full((window, *size), math.inf, dtype=torch.float64, device=device),
        "head": torch.zeros(size, dtype=torch.int64, device=device),
        "count": torch.zeros(size, dtype=torch.int64, device=device),
    }


def push(ring: Ring, value: torch.Tensor, valid: torch.Tensor) -> Ring:
    """Return the ring with a value written over its oldest, where it is valid; the cost is that of the window."""
    values, head = ring["values"], ring["head"]
    window = values.shape[0]
    index = head.unsqueeze(0)
    entry = torch.where(valid.unsqueeze(0), value.unsqueeze(0), values.gather(0, index))
    return {
        "values": values.scatter(0, index, entry),
        "head": torch.where(valid, (head + 1) % window, head),
        "count": torch.where(valid, (ring["count"] + 1).clamp(max=window), ring["count"]),
    }


def filled(ring: Ring) -> torch.Tensor:
    """Return which places hold a value, bool, shaped as the ring."""
    return torch.isfinite(ring["values"])


def quantile(ring: Ring, share: float, also: torch.Tensor | None = None) -> torch.Tensor:
    """Return the quantile of what the ring holds, with linear interpolation (numpy's default); infinite when empty.

    Args:
        ring: the values.
        share: in [0, 1].
        also: one more value to count in, finite.
    """
    values, count = ring["values"], ring["count"]
    if also is not None:
        values = torch.cat([values, also.unsqueeze(0)])
        count = count + 1
    return _quantile_of(values.sort(0).values, share, count)


def _quantile_of(ordered: torch.Tensor, share: float, count: torch.Tensor) -> torch.Tensor:
    place = (count - 1).clamp(min=0).double() * share
    low = place.floor().long()
    high = place.ceil().long()
    below = ordered.gather(0, low.unsqueeze(0)).squeeze(0)
    above = ordered.gather(0, high.unsqueeze(0)).squeeze(0)
    return torch.where(low == high, below, below + (above - below) * (place - low))


def mean_and_std(ring: Ring, *, correction: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation of what the ring holds; 0 and 0 when empty, std 0 for one value."""
    present = filled(ring)
    count = ring["count"].clamp(min=1)
    values = torch.where(present, ring["values"], torch.zeros_like(ring["values"]))
    mean = values.sum(0) / count
    squares = torch.where(present, (values - mean).square(), torch.zeros_like(values)).sum(0)
    return mean, (squares / (ring["count"] - correction).clamp(min=1)).sqrt()


def median_and_mad(ring: Ring) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the median and the median absolute deviation; infinite when the ring is empty."""
    middle = quantile(ring, 0.5)
    away = (ring["values"] - middle).abs()
    away = torch.where(filled(ring), away, torch.full_like(away, math.inf))
    return middle, _quantile_of(away.sort(0).values, 0.5, ring["count"])
