"""What is learned: digits row by row, and the next character of text; and how some of its batches are spoiled."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch

from stability_model import Shape

#: Share of the steps whose batch is spoiled, and share of these that hold NaN (the others: inputs times 1,000).
SPOILED, SPOILED_BY_NAN = 0.01, 2 / 3
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,'()"
CONTEXT = 8
#: Held-out examples that are looked at.
HELD = 128


@dataclass(frozen=True)
class Task:
    """Inputs [N, T, features] and targets [N, T or 1], to learn from and to be judged by."""

    name: str
    shape: Shape
    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    batch: int

    @property
    def prior(self) -> torch.Tensor:
        """Frequencies of the classes, none of them 0."""
        counts = torch.bincount(self.targets.flatten(), minlength=self.shape.classes) + 1.0
        return counts / counts.sum()

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which as many examples are seen as there are."""
        return len(self.inputs) / self.batch


def digits(batch: int = 16) -> Task:
    """Return scikit-learn's 1,797 digits: 8 tokens of 8 pixels, standardised; all but HELD to learn from."""
    from sklearn.datasets import load_digits

    found = load_digits()
    inputs = torch.tensor(found.images, dtype=torch.float32)
    inputs = (inputs - inputs.mean()) / inputs.std()
    targets = torch.tensor(found.target)[:, None]
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    shape = Shape(8, 8, 10, causal=False, position=0.5)
    return Task("digits", shape, inputs[HELD:], targets[HELD:], inputs[:HELD], targets[:HELD], batch)


def text(batch: int = 16, windows: int = 1600) -> Task:
    """Return windows of Python's own help texts, one-hot; what is predicted is the character after each."""
    from pydoc_data.topics import topics

    known = {character: at for at, character in enumerate(ALPHABET)}
    words = " ".join(" ".join(topics[key].lower().split()) for key in sorted(topics))
    codes = torch.tensor([known[c] for c in words if c in known])
    span = CONTEXT + 1
    pieces = codes[: len(codes) // span * span].view(-1, span)
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))[: windows + HELD]
    pieces = pieces[order]
    inputs = torch.nn.functional.one_hot(pieces[:, :-1], len(ALPHABET)).float() * len(ALPHABET) ** 0.5
    targets = pieces[:, 1:].contiguous()
    shape = Shape(len(ALPHABET), CONTEXT, len(ALPHABET), causal=True, position=0.1)
    return Task("text", shape, inputs[HELD:], targets[HELD:], inputs[:HELD], targets[:HELD], batch)


TASKS = {"digits": digits, "text": text}


@dataclass(frozen=True)
class Batch:
    """One step's data; `spoiled` says how it is spoiled, where it is: "", "scale" or "nan"."""

    clean: torch.Tensor
    targets: torch.Tensor
    spoiled: str

    def inputs(self, spoil: torch.Tensor) -> torch.Tensor:
        """Return inputs [S or 1, B, T, features]; `spoil`, bool [S], says which copies get spoiled ones."""
        if not self.spoiled:
            return self.clean[None]
        return torch.where(spoil[:, None, None, None], spoil_inputs(self.clean, self.spoiled), self.clean)


def batches(task: Task, seed: int, steps: int) -> list[Batch]:
    """Draw the batches of a run: they depend on task and seed only, so that all methods and settings get the same."""
    rng = np.random.default_rng([seed, zlib.crc32(task.name.encode())])
    epochs = math.ceil(steps / task.steps_per_epoch)
    order = np.concatenate([rng.permutation(len(task.inputs)) for _ in range(epochs + 1)])
    kinds = np.where(rng.random(steps) < SPOILED_BY_NAN, "nan", "scale")
    kinds = np.where(rng.random(steps) < SPOILED, kinds, "")
    drawn = []
    for step, kind in enumerate(kinds):
        rows = torch.from_numpy(order[step * task.batch : (step + 1) * task.batch])
        drawn.append(Batch(task.inputs[rows], task.targets[rows], str(kind)))
    return drawn


def spoil_inputs(inputs: torch.Tensor, kind: str) -> torch.Tensor:
    """Multiply a batch by 1,000 ("scale"), or put one NaN into its first example ("nan")."""
    if kind == "scale":
        return inputs * 1000.0
    inputs = inputs.clone()
    inputs[0, 0, 0] = torch.nan
    return inputs
