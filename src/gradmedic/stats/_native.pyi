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
def count(
    address: int,
    samples: int,
    apart: int,
    rows: int,
    units: int,
    run: int,
    above: float,
    high: float,
    low: float,
    out: int,
    /,
) -> None: ...
def attention(geometry: int, scale: float, out: int, /) -> None: ...
def sums(address: int, geometry: int, out: int, /) -> None: ...
