"""The scalars of chosen steps, as figures need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradmedic.errors import InputError
from gradmedic.plot.steps import Steps, chosen_steps
from gradmedic.record.arrays import Array
from gradmedic.report.views import Scalars, Source, scalars_of


@dataclass(frozen=True, slots=True)
class Shown:
    """Scalars of the chosen steps of one optimizer, each an array [S] in the order of time.

    NaN where nothing is known; infinity where a loss or norm was measured and is not finite.
    """

    optimizer: str
    steps: Array
    loss: Array
    norm: Array
    norm_post: Array
    threshold: Array
    clipped: Array
    skipped: Array


def shown_scalars(source: Source, optimizer: str | None, steps: Steps) -> list[Shown]:
    """Return the scalars of an optimizer, or of each; those without a step among the chosen ones are left out.

    Raises:
        InputError: there is no such optimizer.
    """
    check_optimizer(source, optimizer)
    found = scalars_of(source)
    made = [_chosen(each, steps) for name, each in found.items() if optimizer is None or name == optimizer]
    return [each for each in made if len(each.steps)]


def check_optimizer(source: Source, optimizer: str | None) -> None:
    """Raise InputError unless the run has that optimizer; a run without steps has any."""
    known = source.optimizers
    if optimizer is not None and known and optimizer not in known:
        raise InputError(f"no optimizer {optimizer!r} in this run; there are: {', '.join(known)}")


def _chosen(scalars: Scalars, steps: Steps) -> Shown:
    kept = chosen_steps(scalars.steps, steps)
    columns = scalars.columns
    return Shown(
        optimizer=scalars.optimizer,
        steps=scalars.steps[kept],
        loss=columns["loss"][kept],
        norm=columns["grad_norm"][kept],
        norm_post=columns["grad_norm_post"][kept],
        # A transform of ours comes after the script's own clip: whichever is lower is the one that binds.
        threshold=np.fmin(columns["clip_threshold"], columns["transform_threshold"])[kept],
        clipped=scalars.clipped[kept],
        skipped=scalars.skipped[kept],
    )
