"""What the model is fed in its first steps: range, spread and non-finite values of its input tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.facts import InputFact
from gradmedic.host_copies import Floats, HostCopies
from gradmedic.probes.parcel import Parcel

_MAX_TENSORS = 8
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 3
_MAX_IDS = 2**12
_MIN_ROWS = 8
_IDS = (torch.int64, torch.int32, torch.int16)


class InputFacts:
    """Samples on their way to the host, and what is known of those that have arrived; in order."""

    def __init__(self) -> None:
        self._copies = HostCopies(_MAX_BYTES)
        self._under_way: list[tuple[list[InputSample], Parcel]] = []

    def send(self, samples: Sequence[InputSample]) -> None:
        """Send some off, in one copy that nobody waits for."""
        if samples:
            parcel = Parcel()
            for sample in samples:
                parcel.add(sample.values)
            parcel.send(self._copies)
            self._under_way.append((list(samples), parcel))

    def arrived(self, *, wait: bool) -> list[InputFact]:
        """Return what has arrived since; all, if it is waited for, as at the end."""
        self._copies.over = wait
        facts: list[InputFact] = []
        while self._under_way and (wait or self._under_way[0][1].arrived):
            samples, parcel = self._under_way.pop(0)
            parcel.open()
            for at, sample in enumerate(samples):
                values = parcel.get(at)
                facts += [] if values is None else [sample.fact(values)]
        return facts

    @property
    def expected(self) -> bool:
        """Whether any are on their way."""
        return bool(self._under_way)

    @property
    def host_syncs(self) -> int:
        """How often training was held up for them."""
        return self._copies.waits


@dataclass(slots=True)
class InputSample:
    """One input tensor's statistics as the device left them: [nan, inf, min, max, mean, std, mode share, features].

    The last two are NaN where they were not measured; see `facts.InputFact`.
    """

    name: str
    step: int
    shape: tuple[int, ...]
    dtype: str
    values: torch.Tensor

    def fact(self, values: Floats) -> InputFact:
        """Return the statistics, once their values are on the host."""
        nans, infs, low, high, mean, std, *more = values.tolist()
        mode, features = (value if math.isfinite(value) else None for value in more)
        return InputFact(
            self.name, self.step, self.shape, self.dtype, int(nans), int(infs), low, high, mean, std, mode, features
        )


def sample_inputs(args: Sequence[Any], kwargs: Mapping[str, Any], step: int) -> list[InputSample]:
    """Take statistics of the tensors among a model's arguments.

    Args:
        args, kwargs: what the model was called with; nested lists, tuples and mappings are looked through.
        step: the optimizer step in which it happened.

    Returns:
        At most 8 samples, on the tensors' device; no host synchronisation. Tensors that functorch wraps (vmap, grad),
        complex, sparse, nested, meta and empty ones are left out.
    """
    found: list[InputSample] = []
    for name, tensor in _tensors([*enumerate(args), *kwargs.items()], 0):
        if len(found) == _MAX_TENSORS:
            break
        if _plain(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            found.append(InputSample(name, step, tuple(tensor.shape), dtype, _statistics(tensor.detach())))
    return found


def _tensors(items: Sequence[tuple[Any, Any]], depth: int, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in items:
        name = f"{prefix}.{key}" if prefix else (f"input{key}" if isinstance(key, int) else str(key))
        if isinstance(value, torch.Tensor):
            yield name, value
        elif depth < _MAX_DEPTH and isinstance(value, Mapping):
            yield from _tensors(list(value.items()), depth + 1, name)
        elif depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
            yield from _tensors(list(enumerate(value)), depth + 1, name)


def _plain(tensor: torch.Tensor) -> bool:
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    strided = tensor.layout == torch.strided and tensor.device.type != "meta"
    return strided and not tensor.is_nested and not wrapped and not tensor.is_complex() and tensor.numel() > 0


@torch.no_grad()
def _statistics(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    values = tensor.float() if tensor.dtype != torch.float64 else tensor
    finite = torch.isfinite(values)
    kept = torch.where(finite, values, torch.zeros((), dtype=values.dtype, device=values.device))
    count = finite.sum().clamp(min=1)
    mean = kept.sum(dtype=wide) / count
    spread = torch.where(finite, kept - mean, 0.0).square().sum(dtype=wide) / count
    low, high = torch.aminmax(kept)
    nans = torch.isnan(values).sum()
    infs = (~finite).sum() - nans
    more = (_mode_share(tensor), _feature_ratio(tensor, kept))
    return torch.stack([each.to(wide) for each in (nans, infs, low, high, mean, spread.sqrt(), *more)])


def _mode_share(tensor: torch.Tensor) -> torch.Tensor:
    """Return the share of the most frequent value of an integer tensor, estimated on at most 4,096 elements."""
    if tensor.dtype not in _IDS or tensor.dim() < 2:
        return torch.full((), math.nan, device=tensor.device)
    flat = tensor.reshape(-1)
    sample = flat[:: max(1, -(-flat.numel() // _MAX_IDS))].sort().values
    # The k-th element behind an equal one belongs to a run of more than k: found by halving, without counting values
    # (whose number only the device knows).
    size = sample.numel()
    run = torch.zeros((), dtype=torch.int64, device=tensor.device)
    places = torch.arange(size, device=tensor.device)
    for power in range(size.bit_length() - 1, -1, -1):
        length = run + (1 << power)
        behind = places + length
        same = sample[behind.clamp(max=size - 1)] == sample
        run = torch.where((same & (behind < size)).any(), length, run)
    return (run + 1) / size


def _feature_ratio(given: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the largest over the smallest spread of a table's columns, constant ones left out."""
    if not given.is_floating_point() or values.dim() != 2 or values.shape[0] < _MIN_ROWS or values.shape[1] < 2:
        return torch.full((), math.nan, device=values.device)
    spread = values.std(0)
    varied = spread > 0
    least = torch.where(varied, spread, torch.inf).min()
    return torch.where(varied.any(), spread.max() / least, torch.nan)
