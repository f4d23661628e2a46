"""When modules and graphs are probed, and whose frame gets what was measured of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradmedic.isolation import Isolation
from gradmedic.probes.graph import walked_once
from gradmedic.probes.graph_samples import GraphProbe
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.modules import ModuleProbe
from gradmedic.probes.preflight import Preflight
from gradmedic.probes.training_mode import ModeProbe
from gradmedic.probes.weights import WeightProbe
from gradmedic.roster import Roster
from gradmedic.schedule import StepSchedule

_FIRST_STEPS = 3
#: Of the micro-batches of a step (or the losses of a GAN) the graphs of so many are looked at.
_MAX_PASSES = 2


class ModuleSampling:
    """Arms the module probe for the steps that are sampled; between them there is no hook.

    Args:
        probe: measures modules.
        graphs: looks at the graphs of backward passes.
        preflight: gets what is known of the loss calls of the first steps.
        every: so many steps lie between two samples, after the first three steps.
        triggered: whether something has just gone wrong, so that this step is sampled as well.
        isolation: what is switched off when it fails.
        roster: the models whose weights and modes are looked at.
    """

    def __init__(
        self,
        probe: ModuleProbe,
        graphs: GraphProbe,
        preflight: Preflight,
        every: int,
        triggered: StepSchedule,
        isolation: Isolation,
        roster: Roster,
    ) -> None:
        self.isolation = isolation
        self._probe = probe
        self._graphs = graphs
        self._preflight = preflight
        self._step = 0
        self._passes = 0
        self._samples: list[ModuleSample] = []
        self._every = every
        self._triggered = triggered
        self._weights = WeightProbe(roster.name_of, isolation.failed)
        self._modes = ModeProbe(lambda: roster.models, isolation.failed)

    def due(self, step: int) -> bool:
        """Whether a step is sampled."""
        return step < _FIRST_STEPS or step % self._every == 0 or bool(self._triggered(step))

    def begin(self, step: int) -> None:
        """A step begins: have its modules probed, or not."""
        self._step, self._passes = step, 0
        if self._probe.off:
            return
        try:
            if self.due(step):
                self._probe.arm()
            else:
                self._probe.disarm()
        except Exception as error:
            self._probe.off = True
            self._probe.disarm()
            self.isolation.failed("modules", error)

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """A backward pass is about to use its graph."""
        startled = self._graphs.startled(roots)
        due = self.due(self._step)
        sampled = self._passes < _MAX_PASSES and (startled or due)
        walked = walked_once(roots)
        self._samples.extend(self._modes.before_backward(roots, walked, sampled=sampled))
        if not sampled:
            return
        self._passes += 1
        self._weights.sample(roots, walked, first=self._step < _FIRST_STEPS)
        self._samples.extend(self._graphs.sample(roots, walked, typical=due and not startled))
        if not self._preflight.over:
            self._preflight.facts.losses.extend(self._graphs.loss_facts(roots, self._step))

    def name_losses(self) -> None:
        """Name the losses of the step that ends, among the facts."""
        self._graphs.names.name_facts()

    def take(self) -> Sequence[ModuleSample]:
        """Return what was measured in the step that ends."""
        self._modes.end_step()
        self._graphs.settle(self._samples)
        taken, self._samples = [*self._samples, *self._weights.take()], []
        return [*self._probe.take(), *taken] if self._probe.armed else taken

    def put_back(self, samples: Sequence[ModuleSample], step: int) -> None:
        """The step that these were taken for is not over yet."""
        self._samples[:0] = samples
        self._step = step

    def stop(self) -> None:
        """Take all hooks off."""
        self._probe.disarm(close=True)
