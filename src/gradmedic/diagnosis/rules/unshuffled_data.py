"""GM511 unshuffled-data: batches come class by class, or hold one class only, or the same batch comes again and again.

The labels of a run in which only one class has come so far may be constant, or sorted with a long first block: from
inside the run the two look alike, and are named together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import RowMemory, Series
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

_KINDS = ("cross_entropy", "nll", "bce", "bce_with_logits")


@dataclass(frozen=True)
class Thresholds:
    """When labels come in runs."""

    share: float = 0.5
    """Mean entropy of a batch's labels over that of all labels seen (rules.md: 0.5)."""
    blatant: float = 0.25
    """The same, so low that batches hold next to one class each: tasks one after the other hold several."""
    one_class: float = 1.6
    """Classes in a batch (exp of its mean entropy) that are next to one, where so far only few classes have come."""
    batches: int = 4
    labels: int = 8
    """Labels in a batch; fewer have little entropy by chance."""
    certainty: float = 5.0
    """What labels say of the batch (twice their number times the mutual information, chi-squared where they say
    nothing) over its degrees of freedom."""
    slack: float = 50.0
    """Added to the degrees of freedom times `certainty`."""
    constant_batches: int = 6
    constant_labels: int = 200
    constant_certain: int = 500
    """Labels of a single class: of two classes at 99 to 1 so many hold no rare one in less than 1 of 100 runs."""
    repeats: int = 6
    """Sampled batches that are all the same."""
    repeated_rows: tuple[int, int] = (2, 256)
    """Sizes of a batch that is hardly a whole data set."""


class UnshuffledData:
    """Labels and identity of the sampled batches."""

    code = "GM511"
    name = "unshuffled-data"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss", "batch"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        losses = [series for series in self._rows.series(view, "loss") if series[-1].leaf in _KINDS]
        # Adversaries, and pairs of positive and negative samples, have one label a call by design.
        if len(losses) == 1 and not view.several_optimizers and not _twice_a_step(losses[0]):
            yield from self._by_class(view, losses[0])
            yield from self._constant(losses[0])
        yield from self._repeated(view)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when another class, or another batch, comes after all."""
        if finding.optimizer not in ("", view.frame.optimizer):
            return True
        if finding.variant == "constant":
            return all(_seen(series) <= 1 for series in self._rows.series(view, "loss") if series[-1].leaf in _KINDS)
        if finding.variant == "repeated":
            return all(len(_prints(series)) == 1 for series in self._rows.series(view, "batch"))
        return True

    def _by_class(self, view: View, series: Series) -> Iterator[Draft]:
        limits = self.thresholds
        rows = [row for row in series if row.get("count") >= limits.labels and row.get("label_entropy") >= 0]
        if len(rows) < limits.batches:
            return
        last = rows[-1]
        of_all, of_batch = last.get("baseline"), _mean([row.get("label_entropy") for row in rows])
        counts = [row.get("count") for row in rows]
        # A batch of n labels cannot hold more than n classes.
        most = min(of_all, math.log(min(counts)))
        if not of_batch < limits.share * most:
            return
        told = 2 * sum(counts) * (of_all - of_batch)
        freedom = (len(rows) - 1) * (last.get("classes_seen") - 1)
        if not told > limits.certainty * freedom + limits.slack:
            return
        blatant = of_batch < limits.blatant * most or math.exp(of_batch) < limits.one_class
        blatant = blatant and not self._dense(view, min(counts))
        severity: Severity = "warning" if blatant or view.harm else "info"
        yield Draft(
            severity=severity,
            confidence=0.85 if blatant else 0.5,
            step=rows[0].step,
            evidence=(
                Evidence("entropy of a batch's labels over that of all", of_batch / most, limits.share),
                Evidence("sampled batches", len(rows), limits.batches),
                Evidence("classes among the labels so far", last.get("classes_seen")),
            ),
            params={
                "share": 100 * of_batch / most,
                "of_batch": math.exp(of_batch),
                "classes": int(last.get("classes_seen")),
                "n": len(rows),
            },
        )

    def _dense(self, view: View, labels: float) -> bool:
        """Whether a sample has many labels (pixels, words): those of one sample belong together, shuffled or not."""
        return any(labels > 2 * series[-1].get("rows") for series in self._rows.series(view, "batch"))

    def _constant(self, series: Series) -> Iterator[Draft]:
        limits, last = self.thresholds, series[-1]
        # Where scores are computed against each other (contrastive losses) the right one may have a fixed place.
        plain = last.get("linear") > 0 and not last.get("weighted") > 0
        if not plain or _seen(series) != 1 or last.get("labels_seen") < limits.constant_labels:
            return
        if len(series) < limits.constant_batches:
            return
        certain = last.get("labels_seen") >= limits.constant_certain
        yield Draft(
            severity="warning" if certain else "info",
            confidence=0.8 if certain else 0.5,
            step=series[0].step,
            where=(last.module,) if last.module else (),
            evidence=(
                Evidence("classes among the labels so far", 1.0, 1.0),
                Evidence("labels looked at", last.get("labels_seen"), limits.constant_labels),
            ),
            params={"labels": int(last.get("labels_seen")), "classes": int(last.get("classes")), "n": len(series)},
            variant="constant",
        )

    def _repeated(self, view: View) -> Iterator[Draft]:
        limits = self.thresholds
        listed = list(self._rows.series(view, "batch"))
        if not listed or any(len(series) < limits.repeats or len(_prints(series)) > 1 for series in listed):
            return
        rows = listed[0][-1].get("rows")
        least, most = limits.repeated_rows
        if not least <= rows <= most or _twice_a_step(listed[0]):
            return
        yield Draft(
            severity="info",
            confidence=0.6,
            step=listed[0][0].step,
            evidence=(Evidence("sampled batches that are the same", len(listed[0]), limits.repeats),),
            params={"n": len(listed[0]), "rows": int(rows)},
            variant="repeated",
        )


def _seen(series: Series) -> float:
    return series[-1].get("classes_seen")


def _prints(series: Series) -> set[tuple[float, float]]:
    return {(row.get("count"), row.get("fingerprint")) for row in series}


def _twice_a_step(series: Series) -> bool:
    """Whether one step had several such rows: several backward passes, each with data of its own."""
    steps = [row.step for row in series]
    return len(set(steps)) < len(steps)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
