"""GM403 over-clipping: nearly every step is clipped to a small part of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.loss import STALL
from gradmedic.diagnosis.module_rows import RowMemory, no_better_than_constant
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Optimizers for which one factor on all gradients cancels out: clipping only reweighs steps against each other.
_SCALE_FREE = ("adam", "rmsprop", "adagrad", "lamb", "adafactor", "adadelta")
#: Optimizers that keep nothing but signs or directions.
_SIGN = ("lion", "sign", "muon")


@dataclass(frozen=True)
class Thresholds:
    """rules.md: share > 0.9 and median factor < 0.1 over 200 steps."""

    share: float = 0.9
    factor: float = 0.1
    window: int = 200
    warm_up: int = 100
    """Language models clip nearly every step in warm-up, in good health: these steps are not counted."""
    factor_certain: float = 0.01
    """Below this, where sizes matter to the optimizer, nothing is being held back from growing too large: the step
    is a hundredth of what the learning rate was chosen for."""
    early: int = 50
    """Steps from the start of which all must be so, for a loss that does not fall."""
    loss_share: float = 0.95
    """Part of the loss of the best constant prediction from which on nothing is learned, as for GM509."""
    samples: int = 3
    """Sampled steps in a row at which it must be so."""


class OverClipping:
    """A threshold far below the gradients it is meant for."""

    code = "GM403"
    name = "over-clipping"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 50 steps once the window is full, and at the end; every ten at the start of a run that suffers."""
        limits = self.thresholds
        self._rows.take(view)
        steps = view.history.steps
        if steps % 10 == 0 and limits.early <= steps < limits.warm_up + limits.window:
            yield from self._early(view)
        if not view.final and (steps % 50 or steps < limits.warm_up + limits.window):
            return
        n = min(limits.window, steps - limits.warm_up)
        if n < limits.window // 4 or not view.frame.clip_frequency:
            return
        share, factor = self._measured(view, n)
        if share > limits.share and factor < limits.factor:
            yield self._draft(view, share, factor, n)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take a warning back when the loss falls after all; what is left of it is a note."""
        if finding.params.get("harm") == "@harm_constant":
            return not self._rows.learned(view, replace(finding, where=(str(finding.params.get("loss_of", "")),)))
        return still_harmed(finding, view)

    def _early(self, view: View) -> Iterator[Draft]:
        limits = self.thresholds
        if view.harm.reason != "not_falling" or not view.frame.clip_frequency or _variant(view):
            return
        n = view.history.steps
        share, factor = self._measured(view, n)
        if share > limits.share and factor < limits.factor_certain:
            yield self._draft(view, share, factor, n)

    def _measured(self, view: View, n: int) -> tuple[float, float]:
        """Return the share of the last `n` steps that were clipped, and the median factor; (0, 1) without a step."""
        used = view.window("skipped", n) == 0
        if not used.any():
            return 0.0, 1.0
        share = float(view.window("clipped", n)[used].mean())
        factors = view.window("clip_scale", n)[used]
        factor = float(np.nanmedian(factors)) if np.isfinite(factors).any() else 1.0
        return share, factor

    def _stuck_at_constant(self, view: View) -> str | None:
        """Return the module whose loss is still that of a constant prediction, although it creeps down; None for none.

        A step that clipping has made a small part of itself lets a loss fall by a few percent, and learns no more than
        how frequent each label is.
        """
        limits = self.thresholds
        if view.several_optimizers or not view.loss.trend > -STALL:
            return None
        for series in self._rows.series(view, "loss"):
            weighted = series[-1].get("weighted") > 0
            if not weighted and no_better_than_constant(series, limits.samples, limits.loss_share) is not None:
                return series[-1].module
        return None

    def _draft(self, view: View, share: float, factor: float, n: int) -> Draft:
        limits = self.thresholds
        norms = view.window("grad_norm", n)
        norms = norms[np.isfinite(norms)]
        typical = float(np.percentile(norms, 90)) if len(norms) else 0.0
        variant = _variant(view)
        stuck = None if view.harm or variant else self._stuck_at_constant(view)
        harmed = view.harm.reason == "not_falling" or stuck is not None
        severity: Severity = "warning" if harmed and variant != "sign" else "info"
        return Draft(
            severity=severity,
            confidence=0.8 if not variant else 0.5,
            step=int(view.window("step", n)[0]),
            evidence=(
                Evidence("share of steps clipped", share, limits.share),
                Evidence("clip factor, median", factor, limits.factor),
                Evidence("pre-clip gradient norm, 90th percentile", typical, view.frame.clip_threshold, "L2"),
            ),
            params={
                "share": 100 * share,
                "factor": factor,
                "n": n,
                "threshold": view.frame.clip_threshold,
                "suggested": float(f"{typical:.2g}"),
                "harm": view.harm.phrase if stuck is None else "@harm_constant",
                "loss_of": stuck or "",
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant=variant,
        )


def _variant(view: View) -> str:
    """Return what clipping means to the optimizer: "sign", "adaptive", or "" where sizes matter."""
    name = view.optimizer_class.lower()
    if any(word in name for word in _SIGN):
        return "sign"
    return "adaptive" if any(word in name for word in _SCALE_FREE) else ""
