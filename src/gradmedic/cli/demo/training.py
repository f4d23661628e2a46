"""One training run of the demo: the usual loop, watched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from gradmedic.cli.demo.corpus import Corpus
from gradmedic.cli.demo.model import CharacterModel
from gradmedic.cli.session import watch_model

#: After so many losses in a row that are no numbers, nothing more is to be learned from a run.
PATIENCE = 8


@dataclass(frozen=True)
class Recipe:
    """What differs between the runs: the learning rate, the initial weights' deviation, the clipping threshold."""

    lr: float
    init_std: float
    max_norm: float | None = None


SICK = Recipe(lr=1.0, init_std=0.3)
TREATED = Recipe(lr=0.1, init_std=0.02, max_norm=1.0)


def train(recipe: Recipe, record: Path, steps: int, progress: Callable[[int, float], None]) -> list[float]:
    """Train one model under watch and return its losses, one a step.

    The same seed makes the same model (up to the scale of its weights) see the same text in the same order. The
    caller's random state is left as it was.

    Args:
        recipe: how to train.
        record: the run folder.
        steps: number of optimizer steps; fewer are made when the loss has ceased to be a number.
        progress: called after each step with the number of steps made and the loss.
    """
    transform: Any = None
    if recipe.max_norm is not None:
        from gradmedic.clip import norm

        transform = norm(recipe.max_norm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        corpus = Corpus(context=64, batch=16, seed=1)
        model = CharacterModel(len(corpus.alphabet), corpus.context, init_std=recipe.init_std)
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9)
        losses: list[float] = []
        with watch_model(model, optimizer, record, transform):
            while len(losses) < steps and not _hopeless(losses):
                inputs, targets = corpus.sample()
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
                progress(len(losses), losses[-1])
    return losses


def _hopeless(losses: list[float]) -> bool:
    return len(losses) >= PATIENCE and not any(math.isfinite(loss) for loss in losses[-PATIENCE:])
