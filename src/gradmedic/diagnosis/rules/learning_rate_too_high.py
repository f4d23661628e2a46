"""GM401 learning-rate-too-high: steps are large beside the weights, and the loss goes up or nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.fastest_group import Fastest, fastest
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import has_recovered
from gradmedic.diagnosis.jump import first_high, jump_before, rises_at_once
from gradmedic.diagnosis.large_steps import LargeSteps
from gradmedic.diagnosis.loss import FALL, STALL
from gradmedic.diagnosis.optimizer_facts import any_group_has
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
    memory: int = 50
    """Steps after which a large one is forgotten: the large steps that Adam takes at first, beside small weights, do
    not explain what goes wrong long after them."""
    lead: int = 10
    """Steps between the two thresholds are blamed for what begins at most so many steps after one of them."""
    ratio_certain: float = 1.0
    """A step that moves weights by their own size leaves nothing of what they were."""
    ratio_lasting: float = 2e-2
    """Median of the latest steps at which a loss that fell at first and then stands still is blamed on them: in 50 of
    them all weights have gone as far as they are long. (A loss that never falls has other causes as often.)"""
    early: int = 10
    """Steps after such a one within which a loss that lies above its start is blamed on it at once."""
    lasting: int = 10
    """Steps in a row that the loss is seen diverged before steps between the two thresholds are blamed: the loss of
    policy gradients, around zero and noisy, is seen so for a step or two in good health."""


@dataclass
class _State:
    """The large steps of one optimizer, and the harm that they may have led up to.

    Attributes:
        steps: the large steps.
        diverged: steps in a row that the loss is seen diverged.
        began: step at which that, or NaN, began; None while there is neither.
        led: whether steps above the notice threshold led up to it.
        wiped: steps made when weights had first moved by their own size.
    """

    steps: LargeSteps
    diverged: int = 0
    began: int | None = None
    led: bool = False
    wiped: int | None = None


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
        state = self._state(view.frame.optimizer)
        self._take(view, state, None)
        fast = fastest(view)
        if fast is not None and (draft := self._of_group(view, fast)) is not None:
            yield draft
            return
        reason = view.harm.reason
        if reason in ("diverged", "nonfinite") and self._caused(state):
            yield self._draft(view, state, "error", 0.85)
        elif state.diverged >= self.thresholds.lasting and state.led:
            yield self._draft(view, state, "warning", 0.55)
        elif reason == "not_falling" and view.due(10):
            yield from self._stuck(view, state)
        elif not reason and self._raised(view, state):
            yield self._draft(view, state, "warning", 0.6, "@harm_raised")
        elif not reason and view.due(10) and self._is_lasting(view, state) and self._stands_still(view):
            yield self._draft(view, state, "warning", 0.5, "@harm_not_falling")

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when a loss that had diverged, or had gone up, has come down again, and falls."""
        if finding.params.get("harm") == "@harm_raised" and finding.optimizer == view.frame.optimizer:
            return view.loss.falling is not True
        if finding.variant == "group" and finding.params["ratio"] > self.thresholds.ratio_certain:
            return True  # the other groups may learn the task all the same, on top of a layer that was thrown away
        return not has_recovered(finding, view)

    def _take(self, view: View, state: _State, held: npt.NDArray[np.bool_] | None) -> None:
        if view.table:
            state.steps.add(view.frame.step, self._ratio(view, held))
            if state.wiped is None and state.steps.recent > self.thresholds.ratio_certain:
                state.wiped = view.history.steps
        self._date(view, state)

    def _of_group(self, view: View, fast: Fastest) -> Draft | None:
        """Return what is for certain of the group with the highest rate: the median of all matrices may hide it."""
        state = self._state(f"{view.frame.optimizer}\0fastest")
        self._take(view, state, fast.held)
        reason, enough = view.harm.reason, state.steps.above >= self.thresholds.steps
        severity: Severity = "warning"
        if reason in ("diverged", "nonfinite") and self._caused(state):
            severity = "error"
        elif not (reason == "not_falling" and view.due(10) and enough and not self._has_settled(view, state.steps)):
            return None
        draft = self._draft(view, state, severity, 0.8 if severity == "error" else 0.65)
        if draft.variant:
            return draft
        where = view.layout.pick(np.flatnonzero(fast.held))
        return replace(draft, variant="group", where=where, params={**draft.params, "other": fast.other})

    def _state(self, optimizer: str) -> _State:
        limits = self.thresholds
        if optimizer not in self._states:
            steps = LargeSteps(limits.ratio_notice, limits.ratio_fault, limits.memory)
            self._states[optimizer] = _State(steps)
        return self._states[optimizer]

    def _date(self, view: View, state: _State) -> None:
        """Keep when the present harm began, and what led up to it."""
        reason = view.harm.reason
        state.diverged = state.diverged + 1 if reason == "diverged" else 0
        if reason not in ("diverged", "nonfinite"):
            state.began, state.led = None, False
        elif state.began is None:
            state.began = view.harm.step if reason == "nonfinite" else view.frame.step
            state.led = self._led(view, state, view.frame.step if state.began is None else state.began)

    def _led(self, view: View, state: _State, began: int) -> bool:
        """Whether steps that were large already led up to a harm that did not come all at once."""
        first = first_high(view, began) if view.harm.reason == "diverged" else None
        if first is not None and rises_at_once(view, first):
            return False
        return state.steps.led_up_to(began if first is None else first, self.thresholds.lead)

    def _ratio(self, view: View, held: npt.NDArray[np.bool_] | None) -> float:
        update = view.tensor_window("update_norm", 1)[-1]
        weight = view.tensor_window("weight_norm", 1)[-1]
        places, floor = self._matrices(view)
        if held is not None:
            mine = held[places]
            places, floor = places[mine], floor[mine]
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

    def _caused(self, state: _State) -> bool:
        """Whether steps above the fault threshold came before the harm, and not from it.

        The loss and the gradients of a step are measured before its update: an update of the very step in which they
        become NaN is made of NaN.
        """
        faulty = state.steps.faulty
        if state.began is None or faulty.first is None:
            return False
        return faulty.began_before(state.began, self.thresholds.memory) or (
            state.led and faulty.last is not None and faulty.last >= state.began
        )

    def _raised(self, view: View, state: _State) -> bool:
        """Whether the loss has lain above its start ever since weights were moved by their own size."""
        limits = self.thresholds
        if state.wiped is None or view.history.steps != state.wiped + limits.early or view.several_optimizers:
            return False
        losses, first = view.window("loss", limits.early), view.loss.first
        raised = np.isfinite(losses).all() and float(np.median(losses)) > first + FALL * abs(first)
        return bool(raised) and state.steps.above >= limits.steps

    def _lately(self, view: View) -> dict[str, Any]:
        """Return the level of the losses that lie above the start, and the steps that it is of."""
        losses, steps = view.window("loss", self.thresholds.early), view.window("step", self.thresholds.early)
        return {"loss_recent": float(np.median(losses)), "recent_from": int(steps[0]), "recent_to": int(steps[-1])}

    def _has_settled(self, view: View, steps: LargeSteps) -> bool:
        """Whether a loss that does not fall has fallen in the very first steps, and steps are no longer too large.

        A small problem is solved in five steps (L-BFGS): the first five losses are not what it began with.
        """
        loss = view.loss
        return loss.start - loss.recent > STALL * abs(loss.start) and not steps.recent > self.thresholds.ratio_notice

    def _stuck(self, view: View, state: _State) -> Iterator[Draft]:
        limits, steps = self.thresholds, state.steps
        if any_group_has(view, "line_search_fn") or self._has_settled(view, steps):
            return
        if steps.above >= limits.steps:
            yield self._draft(view, state, "warning", 0.7)
        elif steps.noticed.first is not None and steps.recent > limits.ratio_notice and self._turning(view):
            yield self._draft(view, state, "warning", 0.5)

    def _is_lasting(self, view: View, state: _State) -> bool:
        """Whether steps have been large for long, of a loss that stays near its start.

        Losses around zero (policy gradients) do not tell by their level whether anything is learned, and a loss that is
        back where it began (other data came) had fallen with steps of that size.
        """
        limits, loss = self.thresholds, view.loss
        if loss.relapsed:
            return False
        ratios = [ratio for _, ratio in state.steps.latest]
        known = len(ratios) >= limits.window // 2 and loss.first > 0 and loss.recent > 0.5 * loss.first
        return known and state.steps.noticed.first is not None and float(np.median(ratios)) > limits.ratio_lasting

    def _stands_still(self, view: View) -> bool:
        """Whether a loss has fallen at first and not since: to that of a constant prediction, often."""
        losses = view.window("loss", 2 * self.thresholds.window)
        if view.several_optimizers or len(losses) < 2 * self.thresholds.window or not np.isfinite(losses).all():
            return False
        levels = [float(np.median(part)) for part in np.split(losses, 4)]
        flat = max(levels) - min(levels) < 2.5 * FALL * abs(levels[0])
        return flat and abs(levels[3] + levels[2] - levels[1] - levels[0]) < 2 * FALL * abs(levels[0])

    def _turning(self, view: View) -> bool:
        """Whether successive gradients point against each other."""
        cosines = view.tensor_window("cosine_prev", self.thresholds.window)[:, view.layout.matrix]
        known = cosines[np.isfinite(cosines)]
        return len(cosines) >= 20 and len(known) > 0 and float(np.median(known)) < self.thresholds.cosine

    def _draft(self, view: View, state: _State, severity: Severity, confidence: float, harm: str = "") -> Draft:
        limits, steps = self.thresholds, state.steps
        step = view.frame.step if steps.spell.first is None else steps.spell.first
        batch = jump_before(view, step, limits.jump, limits.calm) if step == steps.noticed.first else {}
        return Draft(
            severity=severity,
            confidence=min(confidence, 0.5) if batch else confidence,
            step=step,
            evidence=tuple(self._evidence(view, steps, batch)),
            params={
                "ratio": steps.peak,
                "harm": harm or view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
                **(self._lately(view) if harm == "@harm_raised" else {}),
                **self._remedy(view, steps.spell.onset),
                **batch,
            },
            variant="batch" if batch else "",
        )

    def _evidence(self, view: View, steps: LargeSteps, batch: Mapping[str, Any]) -> Iterator[Evidence]:
        limits = self.thresholds
        threshold = limits.ratio_fault if steps.above else limits.ratio_notice
        yield Evidence("update / weight, median over matrices", steps.peak, threshold)
        yield Evidence("loss", view.loss.last, view.loss.first)
        if view.history.peak_lr:
            yield Evidence("learning rate", view.history.peak_lr)
        if batch:
            name = "loss" if batch["what"] == "@loss_of_step" else "pre-clip gradient norm"
            yield Evidence(f"{name}, of one step", batch["jumped"], batch["before"])

    def _remedy(self, view: View, onset: float) -> dict[str, Any]:
        """Return how much lower the rate should be; weights that are updated by hand have a rate that nobody knows."""
        lr = view.history.peak_lr or None
        low, high = self.thresholds.lowering
        wanted = onset / self.thresholds.ratio_notice if math.isfinite(onset) else 10.0
        times = float(f"{min(high, max(low, wanted)):.1g}")
        return {
            "lr": lr,
            "at_rate": "@at_rate" if lr else "",
            "times": times,
            "lower": float(f"{lr / times:.1g}") if lr else None,
            "to_rate": "@to_rate" if lr else "",
        }
