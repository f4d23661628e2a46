"""GM411 overfit: the validation loss that the script logs goes up while the training loss goes down."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.frame import Frame

#: "val_loss", "loss/valid", "eval/loss", "validationLoss"; not "value_loss", "interval" or "val_accuracy".
_VALIDATION = re.compile(r"(?<![a-zA-Z])(val|valid|validation|eval|evaluation|dev|test)(?![a-z])", re.IGNORECASE)
_LOSS = re.compile(r"loss|nll|perplexity|(?<![a-z])ppl(?![a-z])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True)
class Thresholds:
    """rules.md: three evaluations up and more than 10 % (SageMaker Debugger: 10 %, patience 1)."""

    evaluations: int = 3
    rise: float = 0.1
    """Over the best so far."""
    apart: int = 10
    """Evaluations closer together than this many steps are averaged: a validation batch at every step is noise."""
    train: float = 0.02
    """The training loss may have risen by this much since the best evaluation; more is divergence."""


@dataclass(frozen=True, slots=True)
class _Evaluation:
    step: int
    value: float
    train: float


@dataclass
class _Series:
    """One logged validation loss."""

    values: list[float] = field(default_factory=list)
    begun: int = 0
    train: float = math.nan
    seen: float = math.nan
    best: _Evaluation | None = None
    newest: _Evaluation | None = None
    rising: int = 0


class Overfit:
    """Follows every logged key that names a validation loss."""

    code = "GM411"
    name = "overfit"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._series: dict[str, _Series] = {}
        self._before: dict[str, Frame] = {}
        self._names: dict[str, bool] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Read what was logged with the step before: numbers may be added to a step until the next one is made."""
        name = view.frame.optimizer
        before = self._before.get(name)
        self._before[name] = view.frame
        if before is not None and before is not view.frame and before.logged:
            yield from self._read(view, before)
        if view.final:
            yield from self._read(view, view.frame)
            for key, series in self._series.items():
                yield from self._close(view, key, series)

    def _read(self, view: View, frame: Frame) -> Iterator[Draft]:
        for key, value in frame.logged.items():
            if not self._is_validation(key) or not isinstance(value, (int, float)) or not math.isfinite(value):
                continue
            series = self._series.setdefault(key, _Series())
            if value == series.seen:
                continue  # the last evaluation, logged again
            series.seen = value
            if series.values and frame.step - series.begun >= self.thresholds.apart:
                yield from self._close(view, key, series)
            if not series.values:
                series.begun, series.train = frame.step, view.loss.recent
            series.values.append(float(value))

    def _close(self, view: View, key: str, series: _Series) -> Iterator[Draft]:
        """End an evaluation, and say so when the series overfits with it."""
        if not series.values:
            return
        new = _Evaluation(series.begun, sum(series.values) / len(series.values), series.train)
        series.values = []
        former, series.newest = series.newest, new
        series.rising = series.rising + 1 if former is not None and new.value > former.value else 0
        if series.best is None or new.value < series.best.value:
            series.best = new
        limits, best = self.thresholds, series.best
        higher = new.value - best.value > limits.rise * abs(best.value)
        trains = new.train - best.train <= limits.train * abs(best.train)  # False where it is not known
        if series.rising >= limits.evaluations and higher and trains:
            yield self._draft(key, best, new, series.rising)

    def _is_validation(self, key: str) -> bool:
        known = self._names.get(key)
        if known is None:
            split = _CAMEL.sub("_", key)
            known = self._names[key] = bool(_VALIDATION.search(split) and _LOSS.search(split))
        return known

    def _draft(self, key: str, best: _Evaluation, new: _Evaluation, rising: int) -> Draft:
        limits = self.thresholds
        return Draft(
            severity="warning",
            confidence=0.75,
            step=best.step,
            evidence=(
                Evidence("validation loss", new.value, best.value * (1 + limits.rise)),
                Evidence("evaluations in a row that rose", rising, limits.evaluations),
                Evidence("training loss, median of 20 steps", new.train, best.train),
            ),
            params={
                "key": key,
                "best": best.value,
                "now": new.value,
                "percent": 100 * (new.value - best.value) / (abs(best.value) or 1.0),
                "rising": rising,
                "at": new.step,
                "train_then": best.train,
                "train_now": new.train,
            },
            key=key,
        )
