"""What the model is fed in its first steps: range, spread and non-finite values of its input tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.facts import InputFact

_MAX_TENSORS = 8
_MAX_DEPTH = 3


@dataclass(slots=True)
class InputSample:
    """One input tensor's statistics as the device left them: [nan, inf, min, max, mean, std]."""

    name: str
    step: int
    shape: tuple[int, ...]
    dtype: str
    values: torch.Tensor

    def read(self) -> InputFact:
        """Bring the statistics to the host."""
        nans, infs, low, high, mean, std = self.values.to("cpu").numpy().tolist()
        return InputFact(self.name, self.step, self.shape, self.dtype, int(nans), int(infs), low, high, mean, std)


def sample_inputs(args: Sequence[Any], kwargs: Mapping[str, Any], step: int) -> list[InputSample]:
    """Take statistics of the tensors among a model's arguments.

    Args:
        args, kwargs: what the model was called with; nested lists, tuples and mappings are looked through.
        step: the optimizer step in which it happened.

    Returns:
        At most 8 samples, on the tensors' device; no host synchronisation. Tensors that functorch wraps (vmap, grad),
        complex, sparse, meta and empty ones are left out.
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
    return strided and not wrapped and not tensor.is_complex() and tensor.numel() > 0


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
    return torch.stack([each.to(wide) for each in (nans, infs, low, high, mean, spread.sqrt())])
