"""What a rule sees: the frame, the facts, and the recent past of the frame's optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from gradmedic.diagnosis.harm import Harm, assess
from gradmedic.diagnosis.history import History
from gradmedic.diagnosis.layout import Layout
from gradmedic.diagnosis.loss import LossSummary
from gradmedic.diagnosis.ring import Floats
from gradmedic.facts import Facts
from gradmedic.frame import Frame
from gradmedic.types import Event


@dataclass
class View:
    """The present and the recent past, for one optimizer.

    Attributes:
        frame: the step just made (at the end of the run: the last one of this optimizer).
        history: what is remembered of this optimizer.
        layout: its tensors.
        facts: what is known of the run; None before the first facts event.
        events: events since the last frame of any optimizer.
        histories: of all optimizers, by name.
        table: whether this frame's tensor table was taken into the history.
        limits: the user's own alarm, as passed to the engine.
        final: whether the run has ended.
    """

    frame: Frame
    history: History
    layout: Layout
    facts: Facts | None = None
    events: Sequence[Event] = ()
    histories: Mapping[str, History] = field(default_factory=dict)
    table: bool = False
    limits: float | Mapping[str, float] | None = None
    final: bool = False

    def window(self, column: str, n: int) -> Floats:
        """Return a scalar column (`history.SCALARS`) over the last `n` steps, oldest first; NaN where unknown."""
        return self.history.window(column, n)

    def tensor_window(self, column: str, n: int) -> Floats:
        """Return a needed tensor column over the last `n` unskipped steps with a table: a view [<=n, P]."""
        return self.history.tensor_window(column, n)

    def due(self, period: int) -> bool:
        """Whether a rule that looks every `period` tables should look now: then, and at the end of the run."""
        return self.final or (self.table and self.history.tables % period == 0)

    @property
    def optimizer_class(self) -> str:
        """Class name of the optimizer ("AdamW"), "" when unknown."""
        if self.facts is None:
            return ""
        return str(self.facts.optimizers.get(self.frame.optimizer, {}).get("class", ""))

    @cached_property
    def several_optimizers(self) -> bool:
        """Whether at least two optimizers each have losses of their own, as in a GAN; one loss may also be shared."""
        known = [history.loss.opening for history in self.histories.values() if history.loss.count]
        return any(a != b for first, other in pairwise(known) for a, b in zip(first, other, strict=False))

    @cached_property
    def loss(self) -> LossSummary:
        """The loss so far; of the run, where two optimizers share one loss (Muon beside AdamW)."""
        own = self.history.loss
        if not own.count:
            own = next((other.loss for other in self.histories.values() if other.loss.count), own)
        return own.summary()

    @cached_property
    def harm(self) -> Harm:
        """Whether the run is seen to suffer, and how."""
        return assess(self.loss, nonfinite_step=self.history.nonfinite_step, several=self.several_optimizers)
