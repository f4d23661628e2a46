"""Optimizers that step beside the watched ones: is the loss that was seen theirs?

A step of the other network of a GAN uses up the backward pass that was run for it. One of weights that no backward pass
has reached since (a copied optimizer, an averaged model) uses up nothing, and the loss goes on waiting for its owner.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from gradmedic.holdings import held_by
from gradmedic.probes.sentinels import Sentinel, remember

_FOLLOWED = 8
_PARAMETERS = 4


class _Other:
    """One optimizer that is not watched, by the gradients of its first and last tensors."""

    def __init__(self, optimizer: Any) -> None:
        self.reference: weakref.ref[Any] = weakref.ref(optimizer)
        self.thread = threading.get_ident()
        self.reached = False
        self._held: list[weakref.ref[torch.Tensor]] = []
        self._sentinels: list[Sentinel] = []

    def begins(self) -> None:
        """A backward pass begins."""
        optimizer = self.reference()
        held = [] if optimizer is None else held_by(optimizer)
        self._held = [weakref.ref(each) for each in (*held[:_PARAMETERS], *held[_PARAMETERS:][-_PARAMETERS:])]
        self._sentinels = remember((each for ref in self._held if (each := ref()) is not None), 2 * _PARAMETERS)

    def ended(self) -> None:
        """It has ended: has it changed any of these gradients, or made one?"""
        present = sum(1 for ref in self._held if (each := ref()) is not None and each.grad is not None)
        changed = any(not sentinel.untouched for sentinel in self._sentinels)
        self.reached = self.reached or changed or present > len(self._sentinels)


class OtherOptimizers:
    """Knows which backward passes were run for optimizers that are not watched."""

    def __init__(self) -> None:
        self._others: dict[int, _Other] = {}

    def before_backward(self) -> None:
        """An outermost backward pass begins in this thread."""
        for other in self._here():
            other.begins()

    def after_backward(self) -> None:
        """It has ended."""
        for other in self._here():
            other.ended()

    def stepped(self, optimizer: Any) -> bool:
        """Return whether an optimizer that has stepped has used a backward pass since its own last step.

        When one is first seen, having gradients must do for evidence.
        """
        known = self._others.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            used, known.reached = known.reached, False
            return used
        self._others = {key: each for key, each in self._others.items() if each.reference() is not None}
        if len(self._others) < _FOLLOWED:
            self._others[id(optimizer)] = _Other(optimizer)
        return any(parameter.grad is not None for parameter in held_by(optimizer))

    def _here(self) -> list[_Other]:
        thread = threading.get_ident()
        return [other for other in self._others.values() if other.thread == thread]
