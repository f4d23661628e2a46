"""GM406 embedding-led-spike: the gradient of an embedding shoots up some steps before that of the whole model does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gradmedic.diagnosis.bursts import MAD_FLOOR, Burst, BurstFinder
from gradmedic.diagnosis.bursts import Thresholds as BurstThresholds
from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.layout import is_embedding
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When an embedding leads (GLM-130B: collapse trails a spike of the embedding's gradient by a few steps)."""

    burst: BurstThresholds = field(default_factory=BurstThresholds)
    lead: tuple[int, int] = (1, 10)
    """Steps by which the embedding is ahead (rules.md: 1 to 10)."""
    margin: int = 5
    """Steps before the lead in which the embedding must not have been up already."""
    z: float = 6.0
    """Robust z of a tensor's log norm (rules.md)."""
    growth: float = 3.0
    """And this many times its median."""
    baseline: int = 20
    """Steps before the lead that must be known."""


class EmbeddingLedSpike:
    """Where a harmful spike of the total norm began."""

    code = "GM406"
    name = "embedding-led-spike"
    kind: Kind = "symptom"
    needs = frozenset({"norm"})

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._finders: dict[str, BurstFinder] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every twenty steps at the spikes of the total norm."""
        embeddings = _embeddings(view)
        if not embeddings.any():
            return
        finder = self._finders.setdefault(view.frame.optimizer, BurstFinder(self.thresholds.burst))
        if not finder.due(view):
            return
        for burst in finder.look(view):
            if not (burst.hurt or view.harm):
                continue
            leading = self._leader(view, burst, embeddings)
            if leading is not None:
                yield self._draft(view, burst, *leading)

    def _leader(self, view: View, burst: Burst, embeddings: np.ndarray) -> tuple[int, int, float, float] | None:
        """Return place, step, size (over its median) and median of the embedding that spiked first; None for none."""
        limits = self.thresholds
        norms = view.tensor_window("norm", 64)
        steps = view.history.table_steps.window(len(norms))[:, 0]
        begin = burst.step - limits.lead[1] - limits.margin
        calm = norms[steps < begin]
        ahead = (steps >= begin) & (steps <= burst.step)
        if len(calm) < limits.baseline or not ahead.any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            calm, logs = np.log(calm), np.log(norms[ahead])
            base = np.median(calm, axis=0)
            spread = 1.4826 * np.maximum(MAD_FLOOR, np.median(np.abs(calm - base), axis=0))
            high = (logs - base) > np.maximum(limits.z * spread, np.log(limits.growth))
        last = len(logs)
        onset = np.where(high.any(axis=0), high.argmax(axis=0), last)
        others = onset[~embeddings].min(initial=last)
        place = int(np.flatnonzero(embeddings)[onset[embeddings].argmin()])
        first = int(onset[place])
        if first >= min(others, last):
            return None
        step = int(steps[ahead][first])
        if not limits.lead[0] <= burst.step - step <= limits.lead[1]:
            return None
        return place, step, float(np.exp(logs[first, place] - base[place])), float(np.exp(base[place]))

    def _draft(self, view: View, burst: Burst, place: int, step: int, times: float, usual: float) -> Draft:
        limits = self.thresholds
        return Draft(
            severity="warning",
            confidence=0.65,
            step=step,
            where=(view.layout.names[place],),
            evidence=(
                Evidence("steps by which the embedding is ahead", burst.step - step, limits.lead[0], "steps"),
                Evidence("gradient norm of the embedding, over its median", times, limits.growth),
                Evidence("pre-clip gradient norm, of one step", burst.norm, burst.base * limits.burst.growth),
                Evidence("loss after the spike, highest median of 3 steps", burst.loss_after, burst.loss_before),
            ),
            params={
                "lead": burst.step - step,
                "times": times,
                "total": burst.norm / burst.base,
                "spike": burst.step,
                "own": float(f"{2 * usual:.1g}"),
                "suggested": float(f"{2 * burst.base:.1g}"),
            },
        )


def _embeddings(view: View) -> np.ndarray:
    """Return which tensors are embeddings [P]."""
    found = view.layout.cache.get("embeddings")
    if found is None:
        pairs = zip(view.layout.names, view.layout.facts, strict=True)
        found = np.array([is_embedding(name, fact) for name, fact in pairs], dtype=bool)
        view.layout.cache["embeddings"] = found
    result: np.ndarray = found
    return result
