"""From what torch's hooks say to frames: each call is handed, under one lock, to the rooms that it concerns.

`StepWatcher` is the only listener of `torch_hooks`. It hands on two things, in the order in which they happened: events
(JSON-ready) and pending frames. It judges nothing and writes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradmedic.errors import InputError
from gradmedic.facts import Facts
from gradmedic.isolation import Isolation, part
from gradmedic.probes.accumulation import Accumulation
from gradmedic.probes.boundaries import Boundaries
from gradmedic.probes.by_hand import HandUpdates
from gradmedic.probes.clip_calls import ClipCalls
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.closures import Closure, closure_of
from gradmedic.probes.engines import EngineSteps
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.local_gradients import LocalGradients
from gradmedic.probes.loss_share import LossShare
from gradmedic.probes.observed import ObservedModels
from gradmedic.probes.on_modules import OnModules
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.origin_watch import OriginWatch
from gradmedic.probes.preflight import Preflight
from gradmedic.probes.publishing import Output, Publisher
from gradmedic.probes.scaling import Scaling
from gradmedic.probes.stack import StepStack
from gradmedic.probes.threads import StepThreads
from gradmedic.probes.treating import Treating
from gradmedic.probes.treatment import Treatment
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.roster import Roster
from gradmedic.torch_hooks import ClipCall, Listener, StepArguments

#: Parts in which ranks wait for each other.
_COLLECTIVE_PARTS = frozenset(
    {"before_step", "after_step", "before_clip_norm", "before_clip", "after_clip", "closure", "observe", "transform"}
    | {"before_scaler_step", "after_scaler_step"}
)


class StepWatcher(Listener):
    """Turns hook calls into frames; see the module's text.

    Args:
        roster: the watched models.
        optimizers: name -> optimizer to watch; None: every optimizer that steps a parameter of the models.
        options: how to watch.
        output: where frames and events go.
        isolation: what is switched off when it fails.
    """

    def __init__(
        self,
        roster: Roster,
        optimizers: Mapping[str, Any] | None,
        options: WatchOptions,
        output: Output,
        isolation: Isolation,
    ) -> None:
        self.isolation = isolation
        self.lock = threading.RLock()
        self.keep_alive: object = None
        self.preflight = Preflight(roster, isolation.failed)
        self._roster, self._options, self._output = roster, options, output
        self._stack = StepStack()
        self._threads = threads = StepThreads()
        reader = GradientReader(options.backend, options.groups)
        self.agreement = reader.agreement
        engines = reader.engines = EngineSteps(roster, self.observe)
        isolation.on_switched_off = self._switched_off
        self._fleet = fleet = Fleet(roster, reader, options.backend, optimizers)
        self._hands = hands = HandUpdates(roster, reader, options.backend, options.hands)
        self._treatment = treatment = Treatment(options.transform, roster, options.backend, reader.agreement)
        self._clips = clips = ClipWatch()
        self._losses = losses = LossShare(threads, isolation)
        self._origins = origins = OriginWatch(roster, fleet, losses.meter, options.backend != "torch", isolation)
        self._local = local = LocalGradients(roster, fleet, options, isolation)
        self._publisher = publisher = Publisher(
            output, roster, fleet, hands, self.preflight, origins, threads, self.agreement, isolation
        )
        self.on_modules = OnModules(
            roster, fleet, options, losses.meter, self.preflight, local, engines, publisher, isolation
        )
        self._boundaries = boundaries = Boundaries(
            fleet,
            hands,
            ObservedModels(roster),
            options,
            losses,
            local,
            treatment,
            clips,
            self.preflight.facts,
            self._publisher,
            isolation,
        )
        self._treating = Treating(treatment, fleet, reader, clips, losses, options, boundaries, output, isolation)
        self._accumulation = Accumulation(roster, fleet, hands, reader, treatment, clips, losses.meter, threads)
        self._clip_calls = ClipCalls(
            roster, fleet, reader, clips, losses.meter, self._accumulation, self._treating, options, output
        )
        self._scaling = Scaling(fleet, reader, clips, losses, treatment, origins.withheld, boundaries)

    def _switched_off(self, part: str) -> None:
        if part in _COLLECTIVE_PARTS:  # the other ranks would wait for this one
            self.agreement.leave()

    def failed(self, part: str, error: Exception) -> None:
        """A callback failed outside any part of its own."""
        self.isolation.failed(part, error)

    # -- backward ------------------------------------------------------------------------------------------------

    @part("before_backward")
    def before_backward(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        with self.lock:
            if self._roster.gone:
                self._output.gone()
                return
            self.agreement.before_backward()
            self._accumulation.begin()
            self._losses.others.before_backward()
            leaves = self._look_at_graph(roots)
            self._boundaries.finish_by_hand(roots, leaves)  # before the loss may be dropped: it is that step's
            self._accumulation.settle()
            self._losses.begin()
            if self._publisher.sampling is not None:
                self._publisher.sampling.before_backward(roots)
            if not self._threads.foreign():
                self._origins.before_backward(roots)
                self._losses.add(roots, gradients)
                self._local.before_backward()

    @part("graph walk")
    def _look_at_graph(self, roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.preflight.on_backward(roots)

    @part("after_backward")
    def after_backward(self, finished: bool) -> None:
        with self.lock:
            self._clips.after_backward()
            self._losses.others.after_backward()
            event = self._accumulation.after_backward(self._boundaries.stepped_inside)
            if event is not None:
                self._output.event({"step": min((probe.step for probe in self._fleet.probes), default=0), **event})
            if finished and self._hands.active and self._threads.alone():
                self._boundaries.begin_by_hand()
            if not finished and not self._threads.foreign():
                self._losses.meter.take_back()
            self._boundaries.after_backward()

    # -- steps ---------------------------------------------------------------------------------------------------

    @part("before_step")
    def before_step(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> StepArguments | None:
        with self.lock:
            nested = self._stack.begin(optimizer)
            self._scaling.stepping(optimizer)
            probe = self._fleet.find(optimizer)
            if nested or probe is None:
                return None
            self._threads.steps()
            if self._hands.active:
                self._boundaries.stop_by_hand()
            closure, put_back = closure_of(args, kwargs)
            options = self._options.of_step(probe.step, optimizer, spread=probe.spread)
            readings = probe.begin(optimizer, options, read=closure is None)
            if closure is None or put_back is None:
                self._treating.treat(probe, optimizer, readings)
                return None
            self._treatment.prepare(probe, optimizer)
            self._boundaries.evaluations[id(probe)] = 0
            return put_back(self._watched_closure(closure, probe))

    @part("after_step")
    def after_step(self, optimizer: Any) -> None:
        with self.lock:
            if not self._stack.end(optimizer):
                return
            probe = self._fleet.known(optimizer)
            if probe is None:
                self._losses.another_stepped(optimizer)
                self._threads.steps_another()
                return
            self._origins.withheld.made()
            self._boundaries.finish(probe)

    @part("observe")
    def observe(self) -> None:
        """Take the state as it is for a step: for loops without a torch optimizer."""
        with self.lock:
            self._boundaries.observe()

    def _watched_closure(self, closure: Closure, probe: OptimizerProbe) -> Closure:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            self._before_evaluation(probe)
            result = closure(*args, **kwargs)
            self._after_evaluation(probe)
            return result

        return evaluate

    @part("closure")
    def _before_evaluation(self, probe: OptimizerProbe) -> None:
        with self.lock:
            if self._boundaries.evaluations.get(id(probe)):  # what came before the first one is part of this step
                self._losses.meter.restart()

    @part("closure")
    def _after_evaluation(self, probe: OptimizerProbe) -> None:
        with self.lock:
            counts = self._boundaries.evaluations
            counts[id(probe)] = counts.get(id(probe), 0) + 1
            self._treating.treat(probe, probe.reference(), probe.read_again())

    # -- clipping by the user, and the GradScaler ------------------------------------------------------------------

    def before_clip_norm(self, parameters: Sequence[torch.Tensor]) -> None:
        if self._treatment.active:
            self._before_clip_norm(parameters)

    @part("before_clip_norm")
    def _before_clip_norm(self, parameters: Sequence[torch.Tensor]) -> None:
        with self.lock:
            self._clip_calls.before_norm(parameters)

    @part("before_clip")
    def before_clip(self, call: ClipCall) -> None:
        with self.lock:
            self._clip_calls.before(call)

    @part("after_clip")
    def after_clip(self, call: ClipCall) -> None:
        with self.lock:
            self._clip_calls.after(call)

    @part("scaled")
    def scaled(self, scaler: Any, outputs: Any, given: Any) -> None:
        with self.lock:
            self._losses.meter.scaled(scaler, outputs, given)

    @part("after_unscale")
    def after_unscale(self, scaler: Any, optimizer: Any) -> None:
        with self.lock:
            self._scaling.unscaled(optimizer)

    @part("before_scaler_step")
    def before_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        with self.lock:
            self._scaling.begin(optimizer)

    @part("after_scaler_step")
    def after_scaler_step(self, scaler: Any, optimizer: Any, finished: bool) -> None:
        with self.lock:
            self._scaling.end(optimizer, finished)

    @part("after_scaler_update")
    def after_scaler_update(self, scaler: Any, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        with self.lock:
            self._scaling.updated(scaler, scale, tracker)

    # -- trainers with an accumulation of their own ------------------------------------------------------------------

    @part("gradients_put_aside")
    def gradients_put_aside(self) -> None:
        with self.lock:
            self._accumulation.put_aside()

    @part("loss_is")
    def loss_is(self, loss: torch.Tensor) -> None:
        with self.lock:
            self._losses.meter.replace(loss)

    # -- what the monitor asks for ---------------------------------------------------------------------------------

    def name_optimizers_by(self, name: Callable[[Any, Sequence[str]], str]) -> None:
        """Use this function of (optimizer, names taken) to name optimizers that are found."""
        self._fleet.name_by = name

    def collect_facts(self) -> Facts:
        """Return what is known of the run now."""
        return self._publisher.collect_facts()

    @property
    def models(self) -> dict[str, torch.nn.Module]:
        """The watched models, by the prefix of their parameters' names."""
        return self._roster.models

    @property
    def bare_parameters(self) -> list[torch.Tensor]:
        """Watched tensors that no model has."""
        held = [each for entry in self._roster.parameters if (each := entry.reference()) is not None]
        return [each for each in held if self._roster.is_bare(each)]

    @property
    def optimizers(self) -> dict[str, Any]:
        """The watched optimizers that are alive, by name."""
        found = ((probe.name, probe.reference()) for probe in self._fleet.probes)
        return {name: optimizer for name, optimizer in found if optimizer is not None}

    @property
    def host_syncs(self) -> int:
        """How often training was held up by a device, beside what the frames took."""
        return self._treatment.host_syncs + self.preflight.inputs.host_syncs

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has run since the last step of any optimizer."""
        return self._losses.meter.count > 0

    def stop(self) -> None:
        """Finish what is open; called once, after the hooks are gone."""
        with self.lock:
            self._boundaries.finish_by_hand()
            self._publisher.finish_facts()
        self._treatment.close()
        self.on_modules.stop()
        self.preflight.end(close=True)

    def renew_lock(self) -> threading.RLock:
        """Forget a lock that another thread of the parent process may have held when this one was forked."""
        self.lock = threading.RLock()
        return self.lock

    def state_dict(self) -> dict[str, Any]:
        """Return step counters, clip counts and the transform's state, by optimizer name."""
        return {"version": 1, "optimizers": self._fleet.counters(), "transform": self._treatment.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        usable = (
            isinstance(state, Mapping) and state.get("version") == 1 and isinstance(state.get("optimizers"), Mapping)
        )
        if not usable:
            came = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
            raise InputError(f"state: expected what Monitor.state_dict() returned (version 1), got {came}")
        self._fleet.resume(state["optimizers"])
        self._treatment.load_state_dict(state.get("transform", {}))
