"""GM301 vanishing-gradient: gradients shrink layer by layer on their way down, and the loss does not fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.depth import Profile, layers, profile
from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.hidden_activations import HiddenActivations
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When a profile over depth is vanishing."""

    ratio_warning: float = 1e-3
    """First over last layer (AutoTrainer: 1e-3)."""
    ratio_error: float = 1e-5
    """The same, a fault for certain (rules.md)."""
    r2: float = 0.8
    """The decay is steady over layers, not one odd layer (rules.md)."""
    layers: int = 5
    """Fewer layers make no line."""
    start: int = 3
    """Tables one of which is not vanishing where training, and no initialisation, has made it so. A last layer that
    starts at zero hides the others in the first of them."""
    steps: int = 5
    """Tables whose median is judged (rules.md: at least 5)."""


class VanishingGradient:
    """A steady decay over depth, with evidence of harm."""

    code = "GM301"
    name = "vanishing-gradient"
    kind: Kind = "symptom"
    needs = frozenset({"norm"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._healthy_start: set[str] = set()
        self._activations = HiddenActivations()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at the first tables, then every 10 of them, and at the end."""
        limits = self.thresholds
        self._activations.look(view.frame)
        if view.table and view.history.tables <= limits.start:
            self._look_at_start(view)
        if not view.due(self.period) or view.history.tables < limits.steps:
            return
        places, kind = layers(view.layout, limits.layers)
        if not len(places):
            return
        found = profile(view.tensor_window("norm", 4 * limits.steps), places, view.layout.numel, kind)
        if found is None or found.ratio >= limits.ratio_warning or found.r2 < limits.r2:
            return
        severe = found.ratio < limits.ratio_error
        if view.harm.reason == "not_falling" and not view.loss.relapsed:
            yield self._draft(view, found, "error" if severe else "warning")
        elif severe:
            yield self._draft(view, found, "info")

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all: slow starts look like this."""
        if finding.optimizer != view.frame.optimizer or finding.severity == "info":
            return True
        return not (view.due(self.period) and view.loss.falling)

    def _look_at_start(self, view: View) -> None:
        places, kind = layers(view.layout, self.thresholds.layers)
        if not len(places):
            return
        found = profile(view.tensor_window("norm", 1), places, view.layout.numel, kind)
        if found is not None and found.ratio >= self.thresholds.ratio_warning:
            self._healthy_start.add(view.frame.optimizer)

    def _draft(self, view: View, found: Profile, severity: Severity) -> Draft:
        where = view.layout.pick(found.places)
        loss = view.loss
        return Draft(
            severity=severity,
            confidence=min(0.95, 0.5 + 0.45 * found.r2) if severity != "info" else 0.4,
            step=view.frame.step if view.frame.optimizer in self._healthy_start else 0,
            where=where[: max(1, len(where) // 2)],
            evidence=(
                Evidence("gradient rms, first over last layer", found.ratio, self.thresholds.ratio_warning),
                Evidence("factor per layer", found.per_layer),
                Evidence("R2 of the log-linear fit", found.r2, self.thresholds.r2),
                Evidence("loss, median of 20 steps", loss.recent, loss.first),
            ),
            params={
                "ratio": found.ratio,
                "per_layer": found.per_layer,
                "layers": len(where),
                "first": where[0],
                "last": where[-1],
                "loss_first": loss.first,
                "loss_recent": loss.recent,
                "harm": view.harm.phrase,
                **self._activations.params(),
            },
            variant="" if severity != "info" else "note",
        )
