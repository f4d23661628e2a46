"""Positions as tensors for indexing, made once: on a device each would be a copy that waits."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from gradmedic.stats.transfer import to_device


def index_of(positions: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return positions as an int64 tensor on the device; it is shared and must not be changed."""
    return _index_of(tuple(positions), device)


@functools.lru_cache(maxsize=64)
def _index_of(positions: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return to_device(torch.tensor(positions, dtype=torch.int64, device="cpu"), device)
