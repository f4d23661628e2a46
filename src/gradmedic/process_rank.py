"""Which of how many processes of a job this one is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any


def rank_and_world() -> tuple[int, int]:
    """Return (rank, number of ranks): of torch.distributed where it runs, else as the launcher says; (0, 1) alone.

    torch.distributed is not imported for this: where nobody has, it does not run.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return rank_of(os.environ)


def rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, world size) as torchrun and its kin set them; (0, 1) without them."""
    try:
        return int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
