"""One heat: all methods on the same weights, batches and learning rates, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import gradmedic as gm
from stability_model import PostNorm, Stack
from stability_tasks import Task, batches

#: Name -> what makes the transform; None stands for no clipping.
Methods = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True)
class Setting:
    """Learning rate, steps of linear warm-up, and whether batches are spoiled."""

    name: str
    lr: float
    warmup: int
    spoil: bool = True
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Result:
    """One run: accuracy at every look, and the step at which its weights ceased to be finite (-1: never)."""

    accuracies: tuple[float, ...]
    died: int
    skipped: int
    clipped: int


Results = dict[tuple[str, str], Result]


class Entrant:
    """One copy of the model with its clipper and optimizer."""

    def __init__(self, model: PostNorm, transform: Any, setting: Setting) -> None:
        self.model, self.setting = model, setting
        # The fused kernel computes what the others compute; on tiny tensors it is the cheapest.
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=setting.lr, betas=setting.betas, fused=True)
        self.clipper = None if transform is None else gm.Clipper(model, transform, optimizer=self.optimizer)
        self.died, self.skipped, self.clipped = -1, 0, 0

    def step(self, at: int, loss: torch.Tensor) -> None:
        """Make step `at`, unless this run is over."""
        if self.died >= 0:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.lr * min(1.0, (at + 1) / (self.setting.warmup + 1))
        if self.clipper is not None:
            try:
                frame = self.clipper.step(loss)
            except gm.TrainingHalted:
                self.died = at
                return
            self.skipped += frame.skipped
            self.clipped += frame.clipped
        self.optimizer.step()
        if not torch.isfinite(self.model.head.bias).all():
            self.died = at


def heat(task: Task, settings: Sequence[Setting], seed: int, methods: Methods, *, steps: int, look: int) -> Results:
    """Train one copy for each setting and method; look at the held-out accuracy every `look` steps.

    Returns:
        The results by setting and method. A run that dies has accuracy 0 from then on.
    """
    torch.manual_seed(seed)
    entries = [(setting, name) for setting in settings for name in methods]
    stack = Stack(PostNorm(task.shape), len(entries))
    entrants = [Entrant(m, methods[name](), setting) for m, (setting, name) in zip(stack.models, entries, strict=True)]
    spoil = torch.tensor([setting.spoil for setting, _ in entries])
    seen: list[torch.Tensor] = []
    for at, batch in enumerate(batches(task, seed, steps)):
        losses = stack.backward(batch.inputs(spoil), batch.targets)
        for entrant, loss in zip(entrants, losses, strict=True):
            entrant.step(at, loss)
        if (at + 1) % look == 0:
            seen.append(stack.accuracy(task.test_inputs, task.test_targets))
    table = torch.stack(seen, 1).tolist()
    return {
        (setting.name, name): Result(tuple(round(x, 3) for x in row), e.died, e.skipped, e.clipped)
        for (setting, name), row, e in zip(entries, table, entrants, strict=True)
    }
