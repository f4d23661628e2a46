"""Feeding recorded norms through the real transforms, so that advice and action are the same code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gradmedic.clip.answers import ask
from gradmedic.clip.base import Decision, settle
from gradmedic.clip.norm import NormClip
from gradmedic.clip.operations import Scale
from gradmedic.clip.spec import Spec
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import Constant
from gradmedic.clip.trial.series import NormSeries
from gradmedic.frame import Array


@dataclass(frozen=True, slots=True)
class Replay:
    """What a transform would have done at each of S steps.

    Attributes:
        places: which steps of the series, [S].
        scale: joint factor, norm after / norm before, [S]; 1 where the norm is zero or not finite.
        clipped, skipped: bool [S].
        factors: factor of each tensor, [S, P]; None for transforms that were fed with the whole only.
    """

    places: Array
    scale: Array
    clipped: Array
    skipped: Array
    factors: Array | None = None


@torch.inference_mode()
def replay(transform: Any, series: NormSeries, *, by_tensor: bool = False) -> Replay:
    """Return what a transform would have done.

    It sees all steps in order, also those that are not finite and those that the run itself skipped: its history
    stands still there, as it does in training.

    Args:
        transform: one that decides by norms.
        series: the norms.
        by_tensor: feed norms by tensor, on those steps that have a table; otherwise the whole, on all steps that have
            a norm.

    Raises:
        ValueError: the transform needs the gradients themselves.
    """
    if not by_tensor and isinstance(transform, NormClip) and isinstance(transform.threshold, Constant):
        return _at_once(transform, series)
    feed = _Feed.by_tensor(series) if by_tensor else _Feed.whole(series)
    state = transform.init(feed.spec)
    factors, clipped, skipped = [], [], []
    off = torch.zeros((), dtype=torch.bool)
    for at in range(len(feed.places)):
        decision, after = ask(transform, feed.summary(at), state)
        skip = decision.skip
        withheld = feed.withheld[at]
        if withheld is not None:
            skip = withheld if skip is None else skip | withheld
        state = settle(transform, state, after, skip)
        factors.append(_factor(decision).expand(len(feed.spec)))
        clipped.append(off if decision.clipped is None else decision.clipped)
        skipped.append(off if decision.skip is None else decision.skip)
    if not factors:
        return Replay(feed.places, np.ones(0), np.zeros(0, bool), np.zeros(0, bool))
    each = torch.stack(factors).numpy()
    joint = _joint(feed.norms.numpy(), each)
    flags = [torch.stack(column).numpy() for column in (clipped, skipped)]
    return Replay(feed.places, joint, flags[0], flags[1], each if by_tensor else None)


@dataclass(frozen=True, slots=True)
class _Feed:
    spec: Spec
    places: Array
    norms: torch.Tensor
    sick: torch.Tensor
    seen: torch.Tensor | None
    steps: list[int]
    losses: torch.Tensor
    withheld: list[torch.Tensor | None]

    @classmethod
    def whole(cls, series: NormSeries) -> _Feed:
        places = np.flatnonzero(series.known)
        norm = np.where(np.isfinite(series.norm), series.norm, 0.0)[places, None]
        return cls._of(series, places, ("all",), norm, series.nonfinite[places, None], None)

    @classmethod
    def by_tensor(cls, series: NormSeries) -> _Feed:
        places = np.flatnonzero(series.row >= 0)
        rows = series.row[places]
        return cls._of(series, places, series.names, series.tensors[rows], series.sick[rows], series.seen[rows])

    @classmethod
    def _of(
        cls, series: NormSeries, places: Array, names: tuple[str, ...], norm: Array, sick: Array, seen: Array | None
    ) -> _Feed:
        yes = torch.ones((), dtype=torch.bool)
        return cls(
            Spec.of_names(names),
            places,
            torch.as_tensor(np.ascontiguousarray(norm)),
            torch.as_tensor(np.ascontiguousarray(sick)),
            None if seen is None or seen.all() else torch.as_tensor(np.ascontiguousarray(seen)),
            series.step[places].tolist(),
            torch.as_tensor(series.loss[places]),
            [yes if flag else None for flag in series.skipped[places].tolist()],
        )

    def summary(self, at: int) -> GradientSummary:
        seen = None if self.seen is None else self.seen[at]
        loss = self.losses[at]
        known = None if bool(torch.isnan(loss)) else loss
        return GradientSummary(self.spec, self.norms[at], self.sick[at], seen=seen, step=self.steps[at], loss=known)


def _at_once(transform: NormClip, series: NormSeries) -> Replay:
    """A constant threshold remembers nothing: all steps in one call, each in the place of a tensor."""
    feed = _Feed.whole(series)
    norms, sick = feed.norms[:, 0], feed.sick[:, 0]
    spec = Spec.of_names([str(place) for place in feed.places])
    each = replace(transform, per="tensor" if transform.per == "model" else transform.per)
    decision, _ = each.update(GradientSummary(spec, norms, sick), each.init(spec))
    factor = _factor(decision).expand(len(spec)).numpy()
    over = (norms > transform.threshold.number) & (sick == 0)
    return Replay(feed.places, factor, over.numpy(), np.zeros(len(spec), bool))


def _factor(decision: Decision) -> torch.Tensor:
    if not all(isinstance(operation, Scale) for operation in decision.operations):
        raise ValueError("this transform works on gradient elements, and only norms are at hand")
    return decision.scale


def _joint(norms: Array, factors: Array) -> Array:
    largest = norms.max(axis=1, keepdims=True, initial=0.0)
    unit = np.divide(norms, largest, out=np.zeros_like(norms), where=largest > 0)
    before = np.sqrt((unit**2).sum(axis=1))
    after = np.sqrt(((unit * factors) ** 2).sum(axis=1))
    joint: Array = np.divide(after, before, out=np.ones_like(before), where=before > 0)
    return joint
