"""GM515 output-collapse: a regression puts out the same for every sample, at the loss of a constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import RowMemory, Series, median_row, no_better_than_constant
from gradmedic.diagnosis.view import View
from gradmedic.facts import LossFact

_REGRESSION = ("mse", "l1", "smooth_l1", "huber")
#: Growth of the spread of the predictions over the samples that are judged, from which on they are coming apart.
GROWTH = 2.0
#: Step from which on modules have their names, if ever: loss calls of the first three steps are described.
_NAMED = 2


@dataclass(frozen=True)
class Thresholds:
    """rules.md: variance of the predictions below 0.05 of that of the targets."""

    spread: float = 0.05
    loss_share: float = 0.9
    """Part of the loss of the best constant from which on nothing is learned."""
    samples: int = 3
    after: int = 100
    """Steps before which it is a slow start."""
    rows: int = 8
    """Samples of a batch that make a variance."""


class OutputCollapse:
    """Spread of predictions and targets over the batch, on the sampled steps; a broadcast loss at once."""

    code = "GM515"
    name = "output-collapse"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])
        self._seen = 0
        self._unplaced: LossFact | None = None

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at loss calls that are new, at sampled steps, and at the end."""
        losses = view.facts.losses if view.facts is not None else []
        fresh, self._seen = losses[self._seen :], len(losses)
        yield from self._pairs([loss for loss in fresh if loss.broadcast], late=view.final or view.frame.step >= _NAMED)
        if self._rows.take(view):
            for series in self._rows.series(view, "loss"):
                last = series[-1]
                if last.leaf in _REGRESSION and not last.get("broadcast") > 0 and last.step >= self.thresholds.after:
                    yield from self._judge(series)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls below that of a constant after all: some networks start very slowly."""
        return finding.variant == "broadcast" or not self._rows.learned(view, finding)

    def _pairs(self, fresh: Sequence[LossFact], *, late: bool) -> Iterator[Draft]:
        """Say a broadcast loss once: before its module has a name (an unmodified script's first step), it is kept."""
        for loss in fresh:
            if loss.module:
                first, self._unplaced = self._unplaced, None
                yield _broadcast(loss, step=loss.step if first is None else first.step)
            elif self._unplaced is None:
                self._unplaced = loss
        if late and self._unplaced is not None:
            yield _broadcast(self._unplaced, step=self._unplaced.step)
            self._unplaced = None

    def _judge(self, series: Series) -> Iterator[Draft]:
        limits, last = self.thresholds, series[-1]
        rows = [row for row in list(series)[-limits.samples :] if row.get("rows") >= limits.rows]
        spreads = [
            row.get("prediction_spread") / row.get("target_spread") for row in rows if row.get("target_spread") > 0
        ]
        ratio = no_better_than_constant(series, limits.samples, limits.loss_share)
        if ratio is None or len(spreads) < limits.samples or median(spreads) >= limits.spread or _growing(spreads):
            return
        usual = median_row(series, limits.samples)
        yield Draft(
            severity="warning",
            confidence=0.75,
            step=rows[0].step,
            where=(last.module,) if last.module else (),
            evidence=(
                Evidence("variance of the predictions over that of the targets", median(spreads), limits.spread),
                Evidence("loss over that of the best constant", ratio, limits.loss_share),
            ),
            params={
                "ratio": median(spreads),
                "loss": usual.get("loss"),
                "loss_step": usual.step,
                "constant": usual.get("baseline"),
            },
            key=last.module,
        )


def _growing(spreads: Sequence[float]) -> bool:
    """Whether predictions come apart from sample to sample: a slow start that is about to end."""
    return all(later > former for former, later in pairwise(spreads)) and spreads[-1] > GROWTH * spreads[0]


def _broadcast(loss: LossFact, *, step: int) -> Draft:
    return Draft(
        severity="error",
        confidence=0.97,
        step=step,
        where=(loss.module,) if loss.module else (),
        evidence=(Evidence("terms of the loss", loss.numbers.get("count")),),
        params={"terms": int(loss.numbers.get("count", 0))},
        variant="broadcast",
        key=f"broadcast/{loss.module}",
        optimizer="",
    )
