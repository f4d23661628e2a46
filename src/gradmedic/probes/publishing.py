"""What leaves the watcher, in the order in which it happened: origin, facts, then the frame."""

from __future__ import annotations

from typing import Any, Protocol

from gradmedic.facts import Facts
from gradmedic.isolation import Isolation, part
from gradmedic.probes.by_hand import HandUpdates
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.flow import FlowClip
from gradmedic.probes.membership import coarse, describe_optimizer
from gradmedic.probes.origin_watch import OriginWatch
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.preflight import Preflight
from gradmedic.probes.sampling import ModuleSampling
from gradmedic.probes.threads import StepThreads
from gradmedic.roster import Roster
from gradmedic.stats.agreement import Agreement

#: Parameters come and go: ownership is looked at again after so many steps.
_MEMBERSHIP_EVERY = 50


#: Said once where tensors lie on several ranks and not all of them watch.
ALONE = (
    "not all ranks watch this model, whose tensors lie on several of them: what is recorded is of the part on this "
    "rank only; call gm.watch on every rank"
)


class Output(Protocol):
    """Where a watcher's findings of fact go."""

    def event(self, event: dict[str, Any]) -> None:
        """Something happened that is no per-step number."""

    def pending(self, frame: PendingFrame) -> None:
        """A step was made."""

    def gone(self) -> None:
        """Nothing is left of what was to be watched."""

    def halted(self, step: int, reason: str, *, stop: bool) -> None:
        """A guard ends the training; does not return."""


class Publisher:
    """Hands on the frames of steps, with what is known of the run.

    Args:
        output: where they go.
        roster, fleet, hands: the models, the optimizers that are followed, and what stands for one.
        preflight: facts of the first steps.
        origins: where values were lost.
        threads: which threads train.
        agreement: with the other ranks.
        isolation: what is switched off when it fails.
    """

    def __init__(
        self,
        output: Output,
        roster: Roster,
        fleet: Fleet,
        hands: HandUpdates,
        preflight: Preflight,
        origins: OriginWatch,
        threads: StepThreads,
        agreement: Agreement,
        isolation: Isolation,
    ) -> None:
        self.isolation = isolation
        self._agreement = agreement
        self.flow: FlowClip | None = None
        self.sampling: ModuleSampling | None = None
        self._output = output
        self._roster = roster
        self._fleet = fleet
        self._hands = hands
        self._preflight = preflight
        self._origins = origins
        self._threads = threads
        self._last_facts: dict[str, Any] = {}
        self._alone = False

    def publish(self, pending: PendingFrame) -> None:
        """Hand on the frame of a step, after the events that belong before it."""
        self._announce(pending)
        self.complete(pending)
        self._output.pending(pending)

    def complete(self, pending: PendingFrame) -> None:
        """Put into the frame of a step what was measured beside it; from now on the next step is measured."""
        if self.flow is not None:
            pending.logged.update(self.flow.take())
        if self.sampling is not None:
            self.sampling.name_losses()
            pending.modules.extend(self.sampling.take())
            self.sampling.begin(pending.frame.step + 1)

    def hand_on(self, pending: PendingFrame) -> None:
        """Hand on a frame that is complete already, as `publish` does."""
        self._announce(pending)
        self._output.pending(pending)

    def take_back(self, pending: PendingFrame) -> None:
        """A frame that is complete was none: what was measured beside it belongs to the step that is open."""
        if self.sampling is not None:
            self.sampling.put_back(pending.modules, pending.frame.step)

    def _announce(self, pending: PendingFrame) -> None:
        if self._agreement.refused and not self._alone:
            self._alone = True
            self._output.event({"kind": "error", "step": pending.frame.step, "part": "ranks", "message": ALONE})
        origin = self._origins.event(pending.frame)
        if origin is not None:
            self._output.event(origin)
        self._update_facts(pending.frame.step, pending.frame.time)

    def collect_facts(self, *, may_wait: bool = False) -> Facts:
        """Return what is known of the run now.

        Args:
            may_wait: whether what still lies on a device may be waited for.
        """
        owners: dict[int, tuple[str, int]] = {}
        stale: list[dict[str, Any]] = []
        self._roster.refresh()
        if self.sampling is not None:
            self.sampling.name_losses()
        by_hand = self._hands.active and self._fleet.empty
        for probe in [self._hands.probe] if by_hand else self._fleet.probes:
            optimizer = probe.reference()
            if optimizer is not None:
                stale.extend(describe_optimizer(probe.name, optimizer, self._roster, owners, self._preflight.facts))
        return self._preflight.collect(owners, stale, may_wait=may_wait, may_look=self._threads.alone())

    @part("facts")
    def finish_facts(self) -> None:
        """All ends: wait for what is known of inputs and has not arrived, as in a run of few steps."""
        if self._preflight.inputs.expected:
            self._tell_facts(max((probe.step for probe in self._fleet.probes), default=1) - 1, may_wait=True)

    @part("facts")
    def _update_facts(self, step: int, time: float) -> None:
        preflight = self._preflight
        if preflight.over and step % _MEMBERSHIP_EVERY != 0 and not preflight.inputs.expected:
            return
        if not preflight.over:
            preflight.watch_inputs()
            preflight.look_at_unreached()
            counts = [probe.step for probe in self._fleet.probes]
            preflight.stepped(min(counts, default=step + 1), max(counts, default=step + 1))
        self._tell_facts(step, time=time)

    def _tell_facts(self, step: int, *, may_wait: bool = False, **when: float) -> None:
        facts = self.collect_facts(may_wait=may_wait).to_json()
        compared = {**facts, "optimizers": coarse(facts["optimizers"])}
        if compared != self._last_facts:
            self._last_facts = compared
            self._output.event({"kind": "facts", "step": step, **when, "facts": facts})
