"""Where a step ends: with an optimizer's own, inside a backward pass, between two of them, or where the loop says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.facts import Facts
from gradmedic.isolation import Isolation, part
from gradmedic.probes.by_hand import HandUpdates
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.in_backward import merge_steps
from gradmedic.probes.local_gradients import LocalGradients
from gradmedic.probes.loss_share import LossShare
from gradmedic.probes.observed import NAME as OBSERVED
from gradmedic.probes.observed import ObservedModels
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.pending import ClipCount, PendingFrame
from gradmedic.probes.publishing import Publisher
from gradmedic.probes.treatment import Treatment
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.torch_hooks import inside_backward


class Boundaries:
    """Makes frames of steps that have ended, and hands them to the publisher.

    Args:
        fleet, hands, observed: the optimizers that are followed, and what stands for one.
        options: how to watch.
        losses: gives each step its loss.
        local: gives it this rank's own gradients.
        treatment: puts back what it took away for a step.
        clips: is told of steps.
        facts: is told which boundary was taken.
        publisher: where frames go.
        isolation: what is switched off when it fails.
    """

    def __init__(
        self,
        fleet: Fleet,
        hands: HandUpdates,
        observed: ObservedModels,
        options: WatchOptions,
        losses: LossShare,
        local: LocalGradients,
        treatment: Treatment,
        clips: ClipWatch,
        facts: Facts,
        publisher: Publisher,
        isolation: Isolation,
    ) -> None:
        self.isolation = isolation
        #: How often the closure of each open step was called, by the probe's id.
        self.evaluations: dict[int, int] = {}
        self._fleet = fleet
        self._hands = hands
        self._observed = observed
        self._options = options
        self._losses = losses
        self._local = local
        self._treatment = treatment
        self._clips = clips
        self._facts = facts
        self._publisher = publisher
        #: The first step that was made by hand, until a second one shows that weights are trained so.
        self._held: PendingFrame | None = None
        self._by_hand = False
        self._in_backward: list[PendingFrame] = []
        self._in_backward_count = ClipCount()
        self._in_backward_steps = 0

    @property
    def stepped_inside(self) -> set[str]:
        """Names of the optimizers that have stepped in the backward pass that runs, or has just ended."""
        return {pending.frame.optimizer for pending in self._in_backward}

    def finish(self, probe: OptimizerProbe, skipped: str | None = None) -> None:
        """An optimizer has made the step that is open, or has not.

        Args:
            probe: the optimizer's.
            skipped: why the step was not made; None if it was.
        """
        pending = probe.finish(skipped=skipped)
        if pending is None:
            return
        if pending.engine is not None:
            self._facts.engine = pending.engine
        self._treatment.conclude(probe, pending)
        self._clips.stepped()
        if inside_backward():
            self._local.drop(probe)
            self._in_backward.append(pending)
            return
        self._losses.give(pending, self.evaluations.pop(id(probe), None))
        self._local.give(probe, pending)
        self._publisher.publish(pending)

    def withhold(self, probe: OptimizerProbe, optimizer: Any, reason: str) -> None:
        """A step was not made, and its optimizer never heard of it."""
        probe.begin(optimizer, self._options.of_step(probe.step, spread=probe.spread))
        self.finish(probe, skipped=reason)

    def begin_by_hand(self) -> None:
        """A backward pass has ended, and weights may be updated by hand before the next one."""
        if self._hands.active and self._fleet.empty and not self._in_backward:
            self._hands.begin(self._options.of_step(self._hands.probe.step, spread=self._hands.probe.spread))

    def after_backward(self) -> None:
        """A backward pass has ended: so has the step that was made inside it."""
        if self._in_backward:
            self._finish_in_backward()

    @part("optimizer in backward")
    def _finish_in_backward(self) -> None:
        step = self._in_backward_steps
        self._in_backward_steps += 1
        merged = merge_steps(self._in_backward, step, self._in_backward_count)
        self._in_backward = []
        self._facts.optimizer_in_backward = True
        self._losses.give(merged)
        self._publisher.publish(merged)

    @part("by hand")
    def finish_by_hand(self, roots: Sequence[torch.Tensor] = (), leaves: list[torch.Tensor] | None = None) -> None:
        """A backward pass begins, or all ends: so has the step that was made by hand since the last one, if any.

        A single change of the weights is no step yet: SAM moves them between two backward passes, and then steps.

        Args:
            roots: the tensors on which `backward` is about to be called; none at the end.
            leaves: what they reach, if it is known.
        """
        if not self._hands.active or not self._fleet.empty:
            return
        pending = self._hands.finish_if_updated(leaves or self._hands.walk(roots))
        if pending is not None:
            self._losses.give(pending)
            self._publisher.complete(pending)
        steps = [step for step in (self._held, pending) if step is not None]
        self._held = None
        if len(steps) == 1 and roots and not self._by_hand:
            self._held = steps[0]
            return
        for step in steps:
            self._by_hand = True
            self._facts.boundary = "backward"
            self._publisher.hand_on(step)

    def stop_by_hand(self) -> None:
        """An optimizer steps: what changed the weights before was a part of its step."""
        self._hands.stop()
        held, self._held = self._held, None
        if held is not None:
            self._publisher.take_back(held)

    def observe(self) -> None:
        """The loop says that a step has ended."""
        holder = self._observed
        probe = self._fleet.add(holder, OBSERVED)
        self._facts.boundary = "observe"
        probe.begin(holder, self._options.of_step(probe.step, spread=probe.spread), updated=True)
        self.finish(probe)
