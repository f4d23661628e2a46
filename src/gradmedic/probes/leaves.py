"""The tensors in whatever a module returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensor_leaves(output: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor in an output once: lists, tuples, mappings and dataclasses are looked through, to any depth."""
    seen: set[int] = set()
    stack: list[Any] = [output]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        if isinstance(value, torch.Tensor):
            seen.add(id(value))
            yield value
        elif isinstance(value, Mapping):
            seen.add(id(value))
            stack.extend(reversed(list(value.values())))
        elif isinstance(value, (list, tuple)):
            seen.add(id(value))
            stack.extend(reversed(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            seen.add(id(value))
            stack.extend(getattr(value, field.name, None) for field in reversed(dataclasses.fields(value)))
