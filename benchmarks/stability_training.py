"""One heat: settings and methods on the same first weights and the same batches, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import gradmedic as gm
from stability_model import PostNorm, Stack
from stability_store import Key, Run
from stability_tasks import Task, batches

#: Name -> what makes the transform; None stands for no clipping.
Methods = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True)
class Setting:
    """Optimizer, learning rate, steps of linear warm-up, and whether batches are spoiled."""

    name: str
    optimizer: Literal["AdamW", "SGD"]
    lr: float
    warmup: int = 0
    spoil: bool = True

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate at a step: it rises linearly in the warm-up, and falls linearly to 0 at the end."""
        return self.lr * min((step + 1) / (self.warmup + 1), (steps - step) / max(1, steps - self.warmup))


class Entrant:
    """One copy of the model with its clipper and optimizer."""

    def __init__(self, model: PostNorm, transform: Any, setting: Setting) -> None:
        self.model, self.setting = model, setting
        self.optimizer = _optimizer(model, setting)
        self.clipper = None if transform is None else gm.Clipper(model, transform, optimizer=self.optimizer)
        self.over = False
        self.skipped, self.clipped = 0, 0

    def step(self, at: int, steps: int, loss: torch.Tensor) -> None:
        """Make step `at` of so many, unless this run is over: its weights are not finite, or a guard has ended it."""
        if self.over:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.rate(at, steps)
        if self.clipper is not None:
            try:
                frame = self.clipper.step(loss)
            except gm.TrainingHalted:
                self.over = True
                return
            self.skipped += frame.skipped
            self.clipped += frame.clipped
        self.optimizer.step()
        self.over = not bool(torch.isfinite(self.model.head.bias).all())


def _optimizer(model: PostNorm, setting: Setting) -> torch.optim.Optimizer:
    # The fused kernels compute what the others compute; on tiny tensors they are the cheapest.
    if setting.optimizer == "SGD":
        return torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=0.9, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=setting.lr, fused=True)


def heat(
    task: Task, entries: Sequence[tuple[Setting, str]], methods: Methods, seed: int, steps: int, look: int
) -> list[Run]:
    """Train one copy for each setting and method; look at the held-out accuracy every `look` steps."""
    torch.manual_seed(seed)
    stack = Stack(PostNorm(task.shape, task.prior), len(entries))
    entrants = [Entrant(m, methods[name](), setting) for m, (setting, name) in zip(stack.models, entries, strict=True)]
    spoil = torch.tensor([setting.spoil for setting, _ in entries])
    drawn = batches(task, seed, steps)
    seen: list[torch.Tensor] = []
    for at, batch in enumerate(drawn):
        losses = stack.backward(batch.inputs(spoil), batch.targets)
        for entrant, loss in zip(entrants, losses, strict=True):
            entrant.step(at, steps, loss)
        if (at + 1) % look == 0:
            seen.append(stack.accuracy(task.test_inputs, task.test_targets))
    nan_at = next((at for at, batch in enumerate(drawn) if batch.spoiled == "nan"), -1)
    table = torch.stack(seen, 1).tolist()
    return [
        Run(
            Key(task.name, setting.name, name, seed),
            tuple(round(x, 3) for x in row),
            nan_at if setting.spoil else -1,
            entrant.skipped,
            entrant.clipped,
        )
        for (setting, name), row, entrant in zip(entries, table, entrants, strict=True)
    ]
