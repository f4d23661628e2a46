from typing import Any

from torch import Tensor

def measure(
    tensors: list[Tensor],
    questions: tuple[Any, ...],
    moments: int,
    counts: int,
    histogram: int,
    n_threads: int,
    /,
) -> list[int]: ...
