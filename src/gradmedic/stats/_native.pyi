from typing import Any

from torch import Tensor

def measure(
    tensors: list[Tensor],
    questions: tuple[Any, ...],
    moments: int,
    counts: int,
    histogram: int,
    n_threads: int,
    team: int,
    /,
) -> list[int]: ...
def multiply(
    tensors: list[Any], questions: tuple[Any, ...], factors: int, n_threads: int, team: int, /
) -> list[int]: ...
def gather(
    tensors: list[Any],
    questions: tuple[Any, ...],
    geometry: int,
    out: int,
    wide: int,
    /,
) -> list[int]: ...
def compare(one: int, other: int, wide: int, geometry: int, n: int, out: int, /) -> None: ...
