"""What is put on modules while a training is watched: the clip of what flows back, and the probes of sampled steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradmedic.isolation import Isolation
from gradmedic.probes.engines import EngineSteps
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.flow import FlowClip
from gradmedic.probes.graph_samples import GraphProbe
from gradmedic.probes.local_gradients import LocalGradients
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.modules import ModuleProbe
from gradmedic.probes.preflight import Preflight
from gradmedic.probes.publishing import Publisher
from gradmedic.probes.sampling import ModuleSampling
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.roster import Roster


class OnModules:
    """Puts it on and takes it off, as often as watching is paused.

    Args:
        roster, fleet: the models, and the optimizers that are followed.
        options: how to watch.
        meter: knows the loss scale.
        preflight: looks at the first steps of the modules.
        local, engines: have hooks of their own, which go with the probes.
        publisher: is told what there is to be asked at each step.
        isolation: what is switched off when it fails.
    """

    def __init__(
        self,
        roster: Roster,
        fleet: Fleet,
        options: WatchOptions,
        meter: LossMeter,
        preflight: Preflight,
        local: LocalGradients,
        engines: EngineSteps,
        publisher: Publisher,
        isolation: Isolation,
    ) -> None:
        self._roster = roster
        self._fleet = fleet
        self._options = options
        self._meter = meter
        self._preflight = preflight
        self._local = local
        self._engines = engines
        self._publisher = publisher
        self._isolation = isolation

    def start(self, limits: Mapping[str, Any] | None) -> None:
        """Clip what flows back through the outputs of these modules, and probe modules, from the next step on."""
        self._stop_flow()
        if limits:
            meter = self._meter
            self._publisher.flow = FlowClip(limits, self._roster.models, lambda: meter.scale, self._isolation.failed)
        self._start_sampling()

    def stop(self) -> None:
        """Take the hooks for that off."""
        self._stop_flow()
        self._stop_sampling()

    def _start_sampling(self) -> None:
        options = self._options
        probe = ModuleProbe(self._roster, options.modules, options.backend, self._isolation.failed)
        self._stop_sampling()
        self._engines.attach(lambda: sum(each.step for each in self._fleet.probes))
        if not probe.off:
            roster = self._roster
            graphs = GraphProbe(roster.name_of, self._isolation.failed, lambda: roster.discovering)
            sampling = ModuleSampling(
                probe, graphs, self._preflight, options.modules_every, options.triggered, self._isolation, roster
            )
            self._publisher.sampling = sampling
            sampling.begin(max((each.step for each in self._fleet.probes), default=0))

    def _stop_sampling(self) -> None:
        self._local.stop()
        self._engines.detach()
        if self._publisher.sampling is not None:
            self._publisher.sampling.stop()
            self._publisher.sampling = None

    def _stop_flow(self) -> None:
        if self._publisher.flow is not None:
            self._publisher.flow.remove()
            self._publisher.flow = None
