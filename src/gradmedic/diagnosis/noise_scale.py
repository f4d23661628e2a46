"""The gradient noise scale of a recorded run: from gradients of the ranks before and after their reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.local_table import LocalTable, local_table, same_gradients
from gradmedic.diagnosis.rank_batches import rows_of_batches
from gradmedic.diagnosis.ranks import ranks_of
from gradmedic.errors import InputError
from gradmedic.stats.noise_scale import NoiseEstimate, noise_scale

Reason = Literal["", "one_rank", "not_joined", "not_measured", "same", "not_mean", "unresolved"]

#: By how much the square of the mean may be above the mean of squares, through rounding (bfloat16 on the way).
_ROUNDING = 1.05

#: Why there is no number.
SENTENCES: Mapping[str, str] = {
    "": "",
    "one_rank": "one rank: gradients of several small batches at one step are needed, and only a job of several ranks "
    "has them",
    "not_joined": "each process trained by itself: torch.distributed did not join them",
    "not_measured": "no rank's own gradients were recorded: they are measured at sampled steps, under "
    "DistributedDataParallel and fully_shard, where gradients are reduced once a step (accumulate under no_sync())",
    "same": "all ranks have the same gradients: they were given the same batches",
    "not_mean": "the reduced gradient is larger than a mean of the ranks' can be: the reduction is a sum, or divides "
    "by another number",
    "unresolved": "the mean gradient cannot be told from the noise at these steps: the noise scale is larger than "
    "they can show",
}


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The gradient noise scale B_simple = tr(Sigma) / |G|^2, which tells how large a batch still helps.

    Attributes:
        ratio: in global batches (those of all ranks together); NaN where it is not available, see `reason`. Far above
            1: the gradient is mostly noise, and larger batches would save steps in proportion. Far below 1: batches
            could be smaller at hardly more steps.
        error: its standard error; NaN below three sampled steps.
        examples: in examples; None where the number of rows in a batch is not known.
        reason: why there is no number: "one_rank", "not_joined", "not_measured", "same", "not_mean", "unresolved"; ""
            where there is.
        ranks: number of ranks whose gradients were compared.
        steps: sampled steps [S] that it rests on.
        squared_norms, traces: |G|^2 and tr(Sigma) of a rank's batch at each of them [S]; single values may be negative.
    """

    ratio: float
    error: float
    examples: float | None
    reason: Reason
    ranks: int
    steps: npt.NDArray[np.int64]
    squared_norms: npt.NDArray[np.float64]
    traces: npt.NDArray[np.float64]

    def __str__(self) -> str:
        if self.reason:
            return f"gradient noise scale: not available; {SENTENCES[self.reason]}"
        error = "" if math.isnan(self.error) else f" ± {self.error:.2g}"
        rows = "" if self.examples is None else f", about {self.examples:.3g} examples"
        return f"gradient noise scale: {self.ratio:.3g}{error} global batches{rows} ({len(self.steps)} steps)"


def noise_scale_of(run: Any, *, last: int = 20) -> NoiseScale:
    """Return the gradient noise scale of a run; see `Run.noise_scale`."""
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise InputError(f"last: expected a number of sampled steps of at least 1, got {last!r}")
    ranks = ranks_of(run)
    if len(ranks) < 2:
        return _without("one_rank", len(ranks))
    found = noise_scale_of_table(local_table(run, ranks), run, last)
    # Ranks that were joined only after the record began have measured, if anything can be.
    alone = found.reason == "not_measured" and not run.meta.get("distributed")
    return _without("not_joined", len(ranks)) if alone else found


def noise_scale_of_table(table: LocalTable | None, run: Any, last: int = 20) -> NoiseScale:
    """Return the noise scale from a table that was read already; None where there was none to read."""
    if table is None:
        return _without("not_measured", 0)
    small, big = table.squares()
    usable = np.flatnonzero(np.isfinite(big) & np.isfinite(small).all(axis=1))[-last:]
    if not len(usable):
        return _without("not_measured", len(table.ranks))
    small, big, steps = small[usable], big[usable], table.steps[usable]
    found = noise_scale(small, big)
    reason: Reason = ""
    if same_gradients(table)[usable].all():
        reason = "same"
    elif np.median(big / np.maximum(small.mean(axis=1), 1e-300)) > _ROUNDING:
        reason = "not_mean"
    elif math.isnan(found.value):
        reason = "unresolved"
    return _made(found, reason, steps, len(table.ranks), rows_of_batches(run, table.ranks, steps.tolist()))


def _made(
    found: NoiseEstimate, reason: Reason, steps: npt.NDArray[np.int64], ranks: int, rows: float | None
) -> NoiseScale:
    batches = math.nan if reason else found.value
    return NoiseScale(
        ratio=batches / ranks,
        error=math.nan if reason else found.error / ranks,
        examples=None if rows is None or reason else batches * rows,
        reason=reason,
        ranks=ranks,
        steps=steps,
        squared_norms=found.squared_norms,
        traces=found.traces,
    )


def _without(reason: Reason, ranks: int) -> NoiseScale:
    return NoiseScale(math.nan, math.nan, None, reason, ranks, np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
