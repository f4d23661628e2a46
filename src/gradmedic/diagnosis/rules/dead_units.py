"""GM303 dead-units: units of a rectified layer that are zero for every sample, so that nothing can revive them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series
from gradmedic.diagnosis.rising import rise_of
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Where the units of a layer are looked for, the most direct evidence first.
_KINDS = ("activation", "output", "grad_output")


@dataclass(frozen=True)
class Thresholds:
    """rules.md: more than half of the units dead, with harm; 95 % without."""

    share: float = 0.5
    """SageMaker Debugger, TheDeepChecker: 50 % of a layer. Without a harm gate 36 % of healthy runs are flagged."""
    severe: float = 0.95
    batches: int = 20
    """Sampled batches in which a unit was never active."""
    severe_batches: int = 6
    """The same where nearly all units are dead."""
    whole_batches: int = 3
    """The same where all of them are."""
    steady: float = 0.75
    """Share of units that is inactive in every one of the latest sampled batches, where the run suffers: the counts
    remember for up to 40 sampled batches what has died since, which is longer than many a run."""
    steady_batches: int = 10
    """So many batches."""
    steady_spread: float = 0.1
    """Part of the units by which they may differ: live units come and go from batch to batch."""
    steady_samples: int = 300
    """Samples in them."""
    samples: int = 2000
    """Samples (positions of an image or a text count) seen without activity."""


@dataclass(frozen=True, slots=True)
class _Dead:
    series: Series
    share: float
    step: int
    born_dead: bool = False
    harm: Mapping[str, Any] | None = None
    """What is said of the harm, where units have died of late; None where they are counted."""


class DeadUnits:
    """Activity of units over the sampled batches."""

    code = "GM303"
    name = "dead-units"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(_KINDS)

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        for kind in _KINDS:
            listed = [series for series in self._rows.series(view, kind) if series[-1].get("units") >= 2]
            if listed:
                # A module that is called several times has dead units only where they are dead in every call.
                layers: dict[str, list[Series]] = {}
                for series in listed:
                    layers.setdefault(series[-1].module, []).append(series)
                dead = [found for each in layers.values() if (found := self._judge(view, each)) is not None]
                if dead:
                    yield self._draft(view, max(dead, key=lambda each: each.share), dead)
                return

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all, where it rested on that."""
        return finding.variant in ("whole", "born_whole") or still_harmed(finding, view)

    def _judge(self, view: View, calls: list[Series]) -> _Dead | None:
        found = [self._share(view, series) for series in calls]
        if any(each is None for each in found):
            return None
        return min((each for each in found if each is not None), key=lambda each: each.share)

    def _share(self, view: View, series: Series) -> _Dead | None:
        limits, last = self.thresholds, series[-1]
        whole = list(series)[-limits.whole_batches :]
        # The window of the counts reaches back to when they still lived: all dead at once is seen from single batches.
        born = self._born_dead(view, series, 1.0)
        missing = limits.whole_batches - len(whole)
        if (missing == 0 or (missing == 1 and born and series[0].step)) and all(_now(row) >= 1 for row in whole):
            onset = _onset(series)
            born = born and onset == series[0].step
            return _Dead(series, 1.0, 0 if born else onset, born)
        share = last.get("inactive_units") / last.get("units")
        batches = last.get("batches")
        if not share > limits.share or batches * _samples(last) < limits.samples:
            return self._lately(view, series)
        if batches >= limits.batches or (share >= limits.severe and batches >= limits.severe_batches):
            born = self._born_dead(view, series, limits.share)
            return _Dead(series, share, 0 if born else last.step, born)
        return self._lately(view, series)

    def _lately(self, view: View, series: Series) -> _Dead | None:
        """Return the units that are inactive in each of the latest batches, of a run that suffers."""
        limits, latest = self.thresholds, list(series)[-self.thresholds.steady_batches :]
        shares = [_now(row) for row in latest if row.get("inactive_now") == row.get("inactive_now")]
        enough = len(shares) >= limits.steady_batches and sum(map(_samples, latest)) >= limits.steady_samples
        if not enough or min(shares) < limits.steady or max(shares) - min(shares) > limits.steady_spread:
            return None
        harm = {"harm": view.harm.phrase} if view.harm else rise_of(view)
        return _Dead(series, min(shares), latest[0].step, harm=harm) if harm else None

    def _born_dead(self, view: View, series: Series, share: float) -> bool:
        """Whether so many of the units were inactive before the first update.

        The models of an unmodified script are looked for at its first step: what was sampled before has no name yet,
        and is known by its operation and its number of units.
        """
        if series[0].step == 0:
            return _now(series[0]) >= share
        return series[0].step == 1 and any(
            not first[0].module and first[0].step == 0 and _same_units(first[0], series[0]) and _now(first[0]) >= share
            for first in self._rows.series(view, "activation")
        )

    def _draft(self, view: View, worst: _Dead, dead: list[_Dead]) -> Draft:
        limits = self.thresholds
        whole, severe = worst.share >= 1, worst.share >= limits.severe
        harmed = bool(view.harm) or worst.harm is not None
        severity: Severity = "error" if whole or (severe and harmed) else ("warning" if severe or harmed else "info")
        ordered = sorted(dead, key=lambda each: -each.share)
        row = worst.series[-1]
        return Draft(
            severity=severity,
            confidence=0.9 if whole else (0.75 if harmed else 0.5),
            step=worst.step,
            where=tuple(each.series[-1].module for each in ordered),
            evidence=(
                Evidence(
                    "share of units that are never active", worst.share, limits.severe if severe else limits.share
                ),
                _batches(row, worst, limits),
            ),
            params={
                "share": 100 * worst.share,
                "units": int(row.get("units")),
                "layers": len(dead),
                "layer": row.module,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
                "batches": limits.steady_batches,
                **(worst.harm or {}),
            },
            variant=_variant(whole=whole, born_dead=worst.born_dead) if worst.harm is None else "late",
        )


def _batches(row: SampledRow, worst: _Dead, limits: Thresholds) -> Evidence:
    if worst.harm is not None:
        return Evidence("sampled batches", float(limits.steady_batches), limits.steady_batches)
    return Evidence("sampled batches", row.get("batches"), limits.whole_batches if worst.share >= 1 else limits.batches)


def _variant(*, whole: bool, born_dead: bool) -> str:
    if born_dead:
        return "born_whole" if whole else "born"
    return "whole" if whole else ""


def _same_units(one: SampledRow, other: SampledRow) -> bool:
    return one.leaf == other.leaf and one.get("units") == other.get("units")


def _now(row: SampledRow) -> float:
    """Return the share of units that are inactive in the row's own batch, or in all batches so far."""
    now = row.get("inactive_now")
    return (now if now == now else row.get("inactive_units")) / row.get("units")


def _samples(row: SampledRow) -> float:
    """Return how many samples one batch holds for a unit."""
    samples = row.get("samples")
    return samples if samples == samples else row.get("numel") / row.get("units")


def _onset(series: Series) -> int:
    """Return the first step of the latest run of batches in which all units were inactive."""
    step = series[-1].step
    for row in reversed(series):
        if _now(row) < 1:
            break
        step = row.step
    return step
