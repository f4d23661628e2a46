"""A training in miniature: a model, its optimizer, and what one step does; and the faults that it can be given."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradmedic.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that a model can be given.

    Attributes:
        model: name of the function in `gradmedic.testing` that takes it.
        name: what to pass as `fault`.
        code: the finding that names it.
        says: what is wrong, in a few words.
    """

    model: str
    name: str
    code: str
    says: str


@dataclass(frozen=True)
class Case:
    """A small training, healthy or with one fault.

    Attributes:
        model: a module, or a mapping of names to modules.
        optimizer: an optimizer, or a mapping of names to optimizers: both as `gm.watch` takes them.
        step: makes one optimizer step, given its number from 0, and returns the loss as a tensor without graph.
        steps: how many are enough to see what there is to see.
        fault: the fault, None for a healthy training.
    """

    model: Any
    optimizer: Any
    step: Callable[[int], torch.Tensor]
    steps: int
    fault: Fault | None = None

    @property
    def code(self) -> str | None:
        """The finding that names the fault, None for a healthy training."""
        return None if self.fault is None else self.fault.code

    def train(self, steps: int | None = None) -> list[float]:
        """Make steps from number 0 on, and return their losses.

        Args:
            steps: how many; `self.steps` by default.
        """
        return [float(self.step(step)) for step in range(self.steps if steps is None else steps)]


def fault_of(model: str, name: str | None, known: Mapping[str, tuple[str, str]]) -> Fault | None:
    """Return the fault of that name.

    Args:
        model: name of the model.
        name: the fault's, None for none.
        known: name -> (code, what is wrong).

    Raises:
        InputError: the model has no such fault.
    """
    if name is None:
        return None
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}" if near else ""
        raise InputError(f"fault: {model} has {', '.join(known)} or None, not {name!r}{hint}")
    return Fault(model, name, *known[name])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from a seed; afterwards they go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def generator(seed: int, step: int) -> torch.Generator:
    """Return the source of a step's data: the same whatever was drawn before."""
    return torch.Generator().manual_seed(1_000_003 * (seed + 1) + step)


def supervised(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int], Batch],
    criterion: Criterion,
    *,
    zero_grad: bool = True,
    before_step: Callable[[], Any] | None = None,
    after_step: Callable[[], Any] | None = None,
) -> Callable[[int], torch.Tensor]:
    """Return the usual step: zero_grad, forward, loss, backward, step.

    Args:
        model, optimizer: what is trained.
        batch: step -> inputs and targets.
        criterion: (outputs, targets) -> loss.
        zero_grad: whether gradients are cleared.
        before_step, after_step: called before and after `optimizer.step()`.
    """

    def step(number: int) -> torch.Tensor:
        inputs, targets = batch(number)
        if zero_grad:
            optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if before_step is not None:
            before_step()
        optimizer.step()
        if after_step is not None:
            after_step()
        return loss.detach()

    return step
