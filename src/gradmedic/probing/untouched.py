"""A model that may be changed, and is afterwards what it was: weights, buffers, gradients, modes, random numbers.

Parameters are given other storage for a while, and buffers are exchanged for others; then everything has its own again.
Nothing is copied back: all bits are the same, and a graph that waits for its backward pass finds every tensor at the
version at which it was saved. Inside, no parameter may be changed in place.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Held:
    """What was set aside.

    Attributes:
        parameters: those that take a gradient, with storage of their own for now.
        gradients: what stood in their `.grad`, in that order.
        rewind: sets all random number generators to where they were.
    """

    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    rewind: Callable[[], None]


@contextmanager
def untouched(models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> Iterator[Held]:
    """Let models be changed inside the block.

    Args:
        models: their parameters, buffers and modes are kept.
        parameters: further tensors that are trained, which no model has.

    Yields:
        What was set aside. `.grad` is None inside.
    """
    modules = list({id(module): module for model in models for module in model.modules()}.values())
    parts = list({id(each): each for each in (*_parameters(models), *parameters)}.values())
    bound = [(module, dict(module._buffers), module.training) for module in modules]
    storages = [(each, each.data) for each in parts]
    gradients = [each.grad for each in parts]
    rewind = _rewinder(parts)
    try:
        for each, storage in storages:
            each.data = storage.clone()
        for each in parts:
            each.grad = None
        _exchange_buffers(modules)
        trained = [place for place, each in enumerate(parts) if each.requires_grad]
        yield Held([parts[place] for place in trained], [gradients[place] for place in trained], rewind)
    finally:
        for each, storage in storages:
            each.data = storage
        for each, gradient in zip(parts, gradients, strict=True):
            each.grad = gradient
        for module, own, training in bound:
            module._buffers.clear()
            module._buffers.update(own)
            module.training = training
        rewind()


def _exchange_buffers(modules: Sequence[nn.Module]) -> None:
    others: dict[int, torch.Tensor] = {}
    for module in modules:
        for name, each in module._buffers.items():
            if each is not None:
                module._buffers[name] = others.setdefault(id(each), each.detach().clone())


def _parameters(models: Sequence[nn.Module]) -> Iterator[torch.Tensor]:
    for model in models:
        yield from model.parameters()


def _rewinder(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Return a function that sets all generators to where they are now; numpy's too, where it is in use."""
    cpu = torch.get_rng_state()
    devices = sorted({each.device.index for each in tensors if each.device.type == "cuda"})
    cuda = [(index, torch.cuda.get_rng_state(index)) for index in devices]
    numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
    python, other = random.getstate(), None if numpy is None else numpy.get_state()

    def rewind() -> None:
        torch.set_rng_state(cpu)
        for index, state in cuda:
            torch.cuda.set_rng_state(state, index)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(other)

    return rewind
