"""GM401 learning-rate-too-high: steps are large beside the weights, and the loss goes up or nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.jump import jump_before
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When a step is too large."""

    ratio_notice: float = 1e-2
    """Median over matrices of |update| / |weight| (rules.md: notice; Karpathy: healthy about 1e-3)."""
    ratio_fault: float = 1e-1
    """The same, too large for certain (TheDeepChecker: 10^-1)."""
    weight_floor: float = 1e-3
    """Weights of a smaller rms are zero-initialised by design (LoRA's B, residual gates): any step is large beside
    them."""
    elements: int = 16
    """Smaller matrices (a toy problem's 1 x 1 weight) may well move by their own size."""
    steps: int = 3
    """Steps above the fault threshold before a loss that merely does not fall is blamed on them."""
    cosine: float = -0.3
    """Median cosine of successive gradients: steps that overshoot turn the gradient around (rules.md)."""
    window: int = 50
    jump: float = 30.0
    """A loss or norm this many times what it was in the 20 steps before, at weights that had only moved by healthy
    steps, comes from the batch as likely as from the rate."""
    calm: int = 5
    """So many steps before a jump must be known, to say what it jumped from."""
    lowering: tuple[float, float] = (3.0, 1000.0)
    """Bounds on how many times lower the rate should be (rules.md: 3 to 10). Updates are proportional to it, so that
    the ratio of the first large step over `ratio_notice` says how much is needed."""
    lasting: int = 10
    """Steps in a row that the loss is seen diverged before steps between the two thresholds are blamed: the loss of
    policy gradients, around zero and noisy, is seen so for a step or two in good health."""


@dataclass
class _State:
    above: int = 0
    first_notice: int | None = None
    first_fault: int | None = None
    peak: float = 0.0
    onset: float = math.nan
    recent: float = math.nan
    diverged: int = 0


class LearningRateTooHigh:
    """Update ratios of the weight matrices, joined with what the loss does."""

    code = "GM401"
    name = "learning-rate-too-high"
    kind: Kind = "symptom"
    needs = frozenset({"update_norm", "weight_norm", "cosine_prev"})

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Measure every table; judge whenever the run is harmed."""
        state = self._states.setdefault(view.frame.optimizer, _State())
        if view.table:
            self._measure(view, state)
        reason = view.harm.reason
        state.diverged = state.diverged + 1 if reason == "diverged" else 0
        if reason in ("diverged", "nonfinite") and state.first_fault is not None and self._caused(view, state):
            yield self._draft(view, state, "error", 0.85, state.first_fault)
        elif state.diverged >= self.thresholds.lasting and state.first_notice is not None and self._caused(view, state):
            yield self._draft(view, state, "warning", 0.55, state.first_notice)
        elif reason == "not_falling" and view.due(10):
            yield from self._stuck(view, state)

    def _measure(self, view: View, state: _State) -> None:
        ratio = self._ratio(view)
        state.recent = ratio
        if not ratio > self.thresholds.ratio_notice:
            return
        # A step that makes weights infinite has no size; the last one that had one says more.
        state.peak = max(state.peak, ratio) if math.isfinite(ratio) else state.peak or ratio
        if state.first_notice is None:
            state.first_notice, state.onset = view.frame.step, ratio
        if ratio > self.thresholds.ratio_fault:
            state.above += 1
            if state.first_fault is None:
                state.first_fault, state.onset = view.frame.step, ratio

    def _ratio(self, view: View) -> float:
        update = view.tensor_window("update_norm", 1)[-1]
        weight = view.tensor_window("weight_norm", 1)[-1]
        places, floor = self._matrices(view)
        update, weight = update[places], weight[places]
        heavy = weight > floor  # False for NaN
        if not heavy.any():
            return math.nan
        ratios = update[heavy] / weight[heavy]
        ratios = np.sort(ratios)[: len(ratios) - int(np.isnan(ratios).sum())]  # NaN sorts last
        # The lower median: np.median costs more than all the rest of this method.
        return float(ratios[(len(ratios) - 1) // 2]) if len(ratios) else math.nan

    def _matrices(self, view: View) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the places of the weight matrices and the norm below which each counts as zero-initialised."""
        cache = view.layout.cache
        if self.code not in cache:
            places = np.flatnonzero(view.layout.matrix & (view.layout.numel >= self.thresholds.elements))
            sizes = np.sqrt(np.maximum(view.layout.numel[places], 1))
            cache[self.code] = (places, self.thresholds.weight_floor * sizes)
        found: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] = cache[self.code]
        return found

    def _caused(self, view: View, state: _State) -> bool:
        """Whether the large steps came before the harm, and not from it.

        The loss and the gradients of a step are measured before its update: an update of the very step in which they
        become NaN is made of NaN.
        """
        first = state.first_fault if state.first_fault is not None else state.first_notice
        return first is not None and (view.harm.step is None or first < view.harm.step)

    def _stuck(self, view: View, state: _State) -> Iterator[Draft]:
        limits = self.thresholds
        if state.above >= limits.steps and state.first_fault is not None:
            yield self._draft(view, state, "warning", 0.7, state.first_fault)
        elif state.first_notice is not None and state.recent > limits.ratio_notice and self._turning(view):
            yield self._draft(view, state, "warning", 0.5, state.first_notice)

    def _turning(self, view: View) -> bool:
        """Whether successive gradients point against each other."""
        cosines = view.tensor_window("cosine_prev", self.thresholds.window)[:, view.layout.matrix]
        known = cosines[np.isfinite(cosines)]
        return len(cosines) >= 20 and len(known) > 0 and float(np.median(known)) < self.thresholds.cosine

    def _draft(self, view: View, state: _State, severity: Severity, confidence: float, step: int) -> Draft:
        limits = self.thresholds
        batch = jump_before(view, step, limits.jump, limits.calm) if step == state.first_notice else {}
        return Draft(
            severity=severity,
            confidence=min(confidence, 0.5) if batch else confidence,
            step=step,
            evidence=tuple(self._evidence(view, state, batch)),
            params={
                "ratio": state.peak,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
                **self._remedy(view, state),
                **batch,
            },
            variant="batch" if batch else "",
        )

    def _evidence(self, view: View, state: _State, batch: Mapping[str, Any]) -> Iterator[Evidence]:
        limits = self.thresholds
        threshold = limits.ratio_fault if state.first_fault is not None else limits.ratio_notice
        yield Evidence("update / weight, median over matrices", state.peak, threshold)
        yield Evidence("loss", view.loss.last, view.loss.first)
        if view.history.peak_lr:
            yield Evidence("learning rate", view.history.peak_lr)
        if batch:
            name = "loss" if batch["what"] == "@loss_of_step" else "pre-clip gradient norm"
            yield Evidence(f"{name}, of one step", batch["jumped"], batch["before"])

    def _remedy(self, view: View, state: _State) -> dict[str, Any]:
        """Return how much lower the rate should be; weights that are updated by hand have a rate that nobody knows."""
        lr = view.history.peak_lr or None
        low, high = self.thresholds.lowering
        wanted = state.onset / self.thresholds.ratio_notice if math.isfinite(state.onset) else 10.0
        times = float(f"{min(high, max(low, wanted)):.1g}")
        return {
            "lr": lr,
            "at_rate": "@at_rate" if lr else "",
            "times": times,
            "lower": float(f"{lr / times:.1g}") if lr else None,
            "to_rate": "@to_rate" if lr else "",
        }
