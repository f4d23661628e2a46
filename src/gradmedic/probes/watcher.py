"""From what torch's hooks say to frames: when a step begins and ends, which loss is its own, what the user clipped.

`StepWatcher` is the only listener of `torch_hooks`. It hands on two things, in the order in which they happened: events
(JSON-ready) and pending frames. It judges nothing and writes nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.parameter import is_lazy

from gradmedic.clip.base import Halt, Transform
from gradmedic.errors import InputError
from gradmedic.facts import Facts
from gradmedic.holdings import held_by
from gradmedic.isolation import Isolation, part
from gradmedic.probes.by_hand import HandUpdates
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.flow import FlowClip
from gradmedic.probes.gradients import GradientReader, Reading
from gradmedic.probes.graph import walk
from gradmedic.probes.in_backward import merge_steps
from gradmedic.probes.leftovers import Leftovers
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.membership import describe_optimizer
from gradmedic.probes.observed import NAME as OBSERVED
from gradmedic.probes.observed import ObservedModels
from gradmedic.probes.optimizer import OptimizerProbe, StepOptions
from gradmedic.probes.origin import Origin, find_forward_origin
from gradmedic.probes.others import OtherOptimizers
from gradmedic.probes.pending import ClipCount, PendingFrame
from gradmedic.probes.preflight import Preflight
from gradmedic.probes.stack import StepStack
from gradmedic.probes.treatment import Treatment, keep_scale
from gradmedic.probes.withheld import WithheldSteps
from gradmedic.roster import Roster
from gradmedic.schedule import StepSchedule
from gradmedic.torch_hooks import ClipCall, Listener, StepArguments, inside_backward
from gradmedic.types import Backend

#: Parameters come and go: ownership is looked at again after so many steps.
_MEMBERSHIP_EVERY = 50


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


@dataclass(slots=True)
class WatchOptions:
    """How to watch.

    Attributes:
        schedule: which steps are recorded in full.
        histogram: which steps carry log2 histograms.
        backend: statistics backend.
        transform: what to do to gradients, or None.
        cheap: a full table costs no more than norms do here (native kernel), so every step gets one.
        hands: take the end of a backward pass for the boundary while no optimizer is seen.
    """

    schedule: StepSchedule
    histogram: StepSchedule
    backend: Backend = "auto"
    transform: Transform | None = None
    cheap: bool = True
    hands: bool = False


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
        self.roster = roster
        self.options = options
        self.preflight = Preflight(roster, isolation.failed)
        self._output = output
        self.keep_alive: object = None
        self.lock = threading.RLock()
        self._reader = GradientReader(options.backend)
        self._fleet = Fleet(roster, self._reader, options.backend, optimizers)
        self._treatment = Treatment(options.transform, roster, options.backend)
        self._losses = LossMeter()
        self._others = OtherOptimizers()
        self._clips = ClipWatch()
        self._stack = StepStack()
        self._scaler_waits: dict[int, bool] = {}
        self._in_backward: list[PendingFrame] = []
        self._in_backward_count = ClipCount()
        self._in_backward_steps = 0
        self._leftovers = Leftovers()
        self._home = threading.get_ident()
        self._steppers: set[int] = set()
        self._strangers: set[int] = set()
        self._observed = ObservedModels(roster)
        self._flow: FlowClip | None = None
        self._last_facts: dict[str, Any] = {}
        self._evaluations: dict[int, int] = {}
        self._origin: Origin | None = None
        self._origin_sought = False
        self._withheld = WithheldSteps()
        self._shared: tuple[torch.Tensor | None, torch.Tensor | None, int] = (None, None, 0)
        self._sharers: set[str] = set()
        self._hands = HandUpdates(roster, self._reader, options.backend) if options.hands else None

    def start_flow(self, limits: Mapping[str, Any] | None) -> None:
        """Clip the gradient that flows back through these modules' outputs, from now on."""
        self.stop_flow()
        if limits:
            self._flow = FlowClip(limits, self.roster.models, lambda: self._losses.scale, self.isolation.failed)

    def stop_flow(self) -> None:
        """Take the hooks for that off."""
        if self._flow is not None:
            self._flow.remove()
            self._flow = None

    def name_optimizers_by(self, name: Callable[[Any, Sequence[str]], str]) -> None:
        """Use this function of (optimizer, names taken) to name optimizers that are found."""
        self._fleet.name_by = name

    def failed(self, part: str, error: Exception) -> None:
        """A callback failed outside any part of its own."""
        self.isolation.failed(part, error)

    @property
    def probes(self) -> list[OptimizerProbe]:
        """The optimizers that are followed."""
        return self._fleet.probes

    # -- backward ------------------------------------------------------------------------------------------------

    @part("before_backward")
    def before_backward(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        with self.lock:
            if self.roster.gone:
                self._output.gone()
                return
            if self._alone():
                for probe in self.probes:
                    probe.freshness.before_backward()
            self._others.before_backward()
            leaves = self._look_at_graph(roots)
            self._finish_by_hand(roots, leaves)  # before the loss may be dropped: it is that step's
            if self._alone():
                self._notice_erased_gradients()
                self._reader.forget_changed()  # zeroed without a step: SAM between its two passes
            if self._losses.count == 0:
                self._shared = (None, None, 0)
            if not self._foreign_thread():
                self._look_for_origin(roots)
                self._look_at_slopes(roots)
                self._add_loss(roots, gradients)

    def _alone(self) -> bool:
        """Whether this thread is the only one that steps what we watch, so that it may look at the gradients now.

        Torch lets other threads replace `.grad` and write to it without a lock: to read it meanwhile can crash.
        """
        return (self._steppers or {self._home}) == {threading.get_ident()}

    def _foreign_thread(self) -> bool:
        """Whether this thread trains something else, and something else only."""
        thread = threading.get_ident()
        return bool(self._steppers) and thread not in self._steppers and thread in self._strangers

    def _notice_erased_gradients(self) -> None:
        """Gradients that were there and are gone without a step (a bad batch, left out) belong to no step."""
        if not self._losses.count or not self._leftovers.erased(self._with_gradients):
            return
        self._leftovers.forget()
        self._losses.drop()
        self._reader.forget()
        self._clips.dropped()
        for probe in self.probes:
            self._treatment.retract(probe)
        for probe in self.probes:
            probe.freshness.erased()

    def _with_gradients(self) -> list[torch.Tensor]:
        if not self._fleet.empty:
            return [parameter for probe in self.probes for parameter in probe.by_size()]
        leaves = [p for each in self.roster.parameters if (p := each.reference()) is not None and not is_lazy(p)]
        if self._hands is not None:
            leaves += self._hands.leaves
        return sorted(leaves, key=torch.Tensor.numel)

    @part("loss")
    def _add_loss(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        self._losses.add(roots, gradients)

    @part("graph walk")
    def _look_at_graph(self, roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.preflight.on_backward(roots)

    @part("origin")
    def _look_for_origin(self, roots: Sequence[torch.Tensor]) -> None:
        # Reading a value on a device would wait for it; there the origin is told from the gradients, later.
        if self._origin_sought or self.options.backend == "torch" or any(r.device.type != "cpu" for r in roots):
            return
        lost = [root for root in roots if not _finite(root.detach())]
        if all(self._losses.overflowed(root) for root in lost):
            return
        self._origin_sought = True
        if self.roster.discovering and self._fleet.empty:  # before the first step nobody has a name yet
            self.roster.identify(walk(roots).order)
        self._origin = find_forward_origin(roots, self.roster.name_of)

    @part("origin")
    def _look_at_slopes(self, roots: Sequence[torch.Tensor]) -> None:
        if self._origin is None and self.options.backend != "torch":
            self._origin = self._withheld.look(roots, self.roster.name_of)

    @part("after_backward")
    def after_backward(self, finished: bool) -> None:
        with self.lock:
            self._clips.after_backward()
            self._others.after_backward()
            if self._alone():
                self._look_at_gradients(finished)
            else:
                self._leftovers.forget()
                for probe in self.probes:
                    probe.freshness.unseen()
            if not finished and not self._foreign_thread():
                self._losses.take_back()
            if self._in_backward:
                self._finish_in_backward()

    def _look_at_gradients(self, finished: bool) -> None:
        stepped_inside = {pending.frame.optimizer for pending in self._in_backward}
        for probe in self.probes:
            if probe.name not in stepped_inside:  # what is left of its gradients has been used
                probe.freshness.after_backward()
        if self._reader.forget_changed():
            self._note_clip_before_more_backward()
            for probe in self.probes:
                self._treatment.retract(probe)
        by_owner = [probe.by_size() for probe in self.probes]
        self._leftovers.left([self._with_gradients()] if self._fleet.empty else by_owner)
        if finished and self._hands is not None and self._fleet.empty and not self._in_backward:
            self._hands.begin(self._options_for(self._hands.probe))

    # -- steps ---------------------------------------------------------------------------------------------------

    @part("before_step")
    def before_step(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> StepArguments | None:
        with self.lock:
            nested = self._stack.begin(optimizer)
            self._scaler_waits.pop(id(optimizer), None)
            probe = self._fleet.find(optimizer)
            if nested or probe is None:
                return None
            self._steppers.add(threading.get_ident())
            if self._hands is not None:
                self._hands.stop()
                self._hands = None
            closure, put_back = _closure_of(args, kwargs)
            readings = probe.begin(optimizer, self._options_for(probe, optimizer), read=closure is None)
            if closure is None or put_back is None:
                self._treat(probe, optimizer, readings)
                return None
            self._treatment.prepare(probe, optimizer)
            self._evaluations[id(probe)] = 0
            return put_back(self._watched_closure(closure, probe))

    def _watched_closure(self, closure: Callable[..., Any], probe: OptimizerProbe) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            self._before_evaluation()
            result = closure(*args, **kwargs)
            self._after_evaluation(probe)
            return result

        return evaluate

    @part("closure")
    def _before_evaluation(self) -> None:
        with self.lock:
            self._losses.restart()

    @part("closure")
    def _after_evaluation(self, probe: OptimizerProbe) -> None:
        with self.lock:
            self._evaluations[id(probe)] = self._evaluations.get(id(probe), 0) + 1
            self._treat(probe, probe.reference(), probe.read_again())

    @part("after_step")
    def after_step(self, optimizer: Any) -> None:
        with self.lock:
            outermost = self._stack.end(optimizer)
            probe = self._fleet.known(optimizer)
            if not outermost or probe is None:
                if outermost and probe is None:
                    self._another_stepped(optimizer)
                    self._strangers.add(threading.get_ident())
                return
            self._withheld.made()
            self._finish(probe)

    def _another_stepped(self, optimizer: Any) -> None:
        """An optimizer that is not watched has stepped, and may have used the loss that was there."""
        if self._others.stepped(optimizer) and not self._foreign_thread():
            self._losses.restart()

    def _finish(self, probe: OptimizerProbe, skipped: str | None = None) -> None:
        step = probe.step
        pending = probe.finish(skipped=skipped)
        if pending is None:
            return
        pending.skips = self._treatment.reasons(probe)
        self._treatment.stepped(probe)
        self._clips.stepped()
        if inside_backward():
            self._in_backward.append(pending)
            return
        self._give_loss(pending, self._evaluations.pop(id(probe), None))
        self._publish(pending, step)

    def _give_loss(self, pending: PendingFrame, evaluations: int | None) -> None:
        # Optimizers that share one backward pass (AdamW beside Muon) share its loss; each has it for one step.
        if self._losses.count:
            self._shared = (self._losses.loss, self._losses.scale, self._losses.count)
            self._sharers.clear()
        elif pending.frame.optimizer in self._sharers:
            self._shared = (None, None, 0)
        self._sharers.add(pending.frame.optimizer)
        pending.loss, pending.loss_scale, count = self._shared
        pending.frame.micro_batches = evaluations if evaluations is not None else count
        self._losses.restart()

    def _publish(self, pending: PendingFrame, step: int) -> None:
        if self._origin is not None:
            # With the frame's own time, so that a later reading of the record finds it before the frame.
            origin, self._origin = self._origin, None
            first = step if origin.step is None else origin.step
            place = {"step": first, "optimizer": pending.frame.optimizer, "time": pending.frame.time}
            if origin.kind != "backward" or self._withheld.confirmed(pending.frame.skipped):
                self._output.event({**origin.to_event(), **place})
        self._update_facts(step, pending.frame.time, pending.keep)
        if self._flow is not None:
            pending.logged.update(self._flow.take())
        self._output.pending(pending)

    @part("facts")
    def _update_facts(self, step: int, time: float, may_wait: bool) -> None:
        if self.preflight.over and step % _MEMBERSHIP_EVERY != 0:
            return
        if not self.preflight.over:
            self.preflight.watch_inputs()
            self.preflight.look_at_unreached()
            counts = [probe.step for probe in self.probes]
            self.preflight.stepped(min(counts, default=step + 1), max(counts, default=step + 1))
        facts = self.collect_facts(may_wait=may_wait).to_json()
        if facts != self._last_facts:
            self._last_facts = facts
            self._output.event({"kind": "facts", "step": step, "time": time, "facts": facts})

    def collect_facts(self, *, may_wait: bool = True) -> Facts:
        """Return what is known of the run now."""
        owners: dict[int, str] = {}
        stale: list[dict[str, Any]] = []
        self.roster.refresh()
        followed = self.probes if self._hands is None or not self._fleet.empty else [self._hands.probe]
        for probe in followed:
            optimizer = probe.reference()
            if optimizer is not None:
                stale.extend(describe_optimizer(probe.name, optimizer, self.roster, owners, self.preflight.facts))
        return self.preflight.collect(owners, stale, may_wait=may_wait, may_look=self._alone())

    def _options_for(self, probe: OptimizerProbe, optimizer: Any | None = None) -> StepOptions:
        keep = bool(self.options.schedule(probe.step))
        full = keep or self.options.cheap
        soon = keep or bool(self.options.schedule(probe.step + 1))
        options = StepOptions(full=full, keep=keep, sample=keep or soon, direction=soon)
        options.sample = keep or (soon and self.options.cheap)
        options.histogram = keep and bool(self.options.histogram(probe.step))
        if optimizer is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            options.divide_by = getattr(optimizer, "grad_scale", None)
            options.found_inf = getattr(optimizer, "found_inf", None)
        return options

    @part("transform")
    def _treat(
        self, probe: OptimizerProbe, optimizer: Any, readings: list[tuple[Reading, list[int]]], early: bool = False
    ) -> None:
        if not self._treatment.active:
            return
        loss = self._losses.loss if self._losses.count else self._shared[0]
        scale = probe.loss_scale
        halt = self._treatment.apply(probe, optimizer, readings, loss=loss, loss_scale=scale, early=early)
        if halt is not None:
            self._trip(probe, optimizer, halt)

    def _trip(self, probe: OptimizerProbe, optimizer: Any, halt: Halt) -> None:
        """A guard ends the training: the step is not made, and its frame is the last but for those of others."""
        if callable(halt.on_trip):
            halt.on_trip(halt.text)
            return
        self._treatment.stepped(probe)
        if not probe.is_open:
            probe.begin(optimizer, self._options_for(probe))
        step = probe.step
        self._finish(probe, skipped=halt.text)
        self._output.halted(step, halt.text, stop=halt.on_trip == "stop")

    @part("before_clip_norm")
    def before_clip_norm(self, parameters: Sequence[torch.Tensor]) -> None:
        """Ours comes before the script's own clip, on all gradients of the optimizer, and once a step."""
        if not self._treatment.active:
            return
        with self.lock:
            watched = self._watched(parameters)
            if self._alone():
                self._notice_erased_gradients()
            for owner in self.probes if watched else ():
                if owner.owns({id(parameter) for parameter in watched}):
                    self._treat_early(owner)

    def _treat_early(self, owner: OptimizerProbe) -> None:
        optimizer = owner.reference()
        if optimizer is None or inside_backward() or self._treatment.decided(owner) or not self._clips.effective(owner):
            return
        if self._clips.still_scaled(owner, self._losses):
            return
        parameters = owner.parameters(optimizer)
        held = [parameter for parameter in parameters if parameter.grad is not None]
        call = ClipCall("transform", held)
        self._reader.before_clip(call, held, full=self._options_for(owner).full, divide_by=None)
        places = {id(parameter): at for at, parameter in enumerate(parameters)}
        readings = [
            (reading, [places[id(held[at])] for at in positions])
            for reading, positions in self._reader.waiting_for(held)
        ]
        self._treat(owner, optimizer, readings, early=True)
        self._reader.touched(held)

    # -- clipping by the user, and the GradScaler ------------------------------------------------------------------

    @part("before_clip")
    def before_clip(self, call: ClipCall) -> None:
        with self.lock:
            watched = self._watched(call.parameters)
            if not watched:
                return
            if self._alone():
                self._notice_erased_gradients()
            owner = next((probe for probe in self.probes if probe.owns({id(p) for p in watched})), None)
            event = self._clips.classify(call, owner, self._losses)
            if event is not None:
                self._output.event({"step": owner.step if owner else 0, **event})
            if not self._clips.effective(owner):
                return
            if call.clip_value is not None:
                self.before_clip_norm(call.parameters)
            options = StepOptions() if owner is None else self._options_for(owner)
            scale = self._losses.scale if self._clips.still_scaled(owner, self._losses) else None
            self._reader.before_clip(call, watched, full=options.full, divide_by=scale)

    def _watched(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = {id(p): p for p in parameters if p.requires_grad}
        if not self.roster.discovering:
            known = {key for key, p in found.items() if self.roster.lookup(p) is not None}
            known |= {key for probe in self.probes for key in found if probe.owns({key})}
            found = {key: p for key, p in found.items() if key in known}
        return list(found.values())

    @part("after_clip")
    def after_clip(self, call: ClipCall) -> None:
        with self.lock:
            self._reader.after_clip(call)

    def _note_clip_before_more_backward(self) -> None:
        event = self._clips.overtaken()
        if event is not None:
            self._output.event({"step": min((probe.step for probe in self.probes), default=0), **event})

    @part("scaled")
    def scaled(self, scaler: Any, outputs: Any, given: Any) -> None:
        with self.lock:
            self._losses.scaled(scaler, outputs, given)

    @part("after_unscale")
    def after_unscale(self, scaler: Any, optimizer: Any) -> None:
        with self.lock:
            self._clips.unscaled(optimizer)
            self._reader.touched(held_by(optimizer))

    @part("before_scaler_step")
    def before_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        with self.lock:
            self._scaler_waits[id(optimizer)] = True

    @part("after_scaler_step")
    def after_scaler_step(self, scaler: Any, optimizer: Any, finished: bool) -> None:
        with self.lock:
            withheld = self._scaler_waits.pop(id(optimizer), False)
            if not withheld or not finished:
                return
            probe = self._fleet.find(optimizer)
            if probe is None:
                self._another_stepped(optimizer)
                return
            self._withheld.withheld(probe.step)
            self._treatment.retract(probe)
            probe.begin(optimizer, self._options_for(probe))
            self._finish(probe, skipped="non-finite gradients under the loss scale")

    @part("after_scaler_update")
    def after_scaler_update(self, scaler: Any, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        """A step that a guard has skipped is no proof that the loss scale may grow."""
        with self.lock:
            flags, self._treatment.uncredited = self._treatment.uncredited, []
            for flag in flags:
                keep_scale(scaler, flag, scale, tracker)

    # -- boundaries without an optimizer's own ------------------------------------------------------------------------

    @part("optimizer in backward")
    def _finish_in_backward(self) -> None:
        step = self._in_backward_steps
        self._in_backward_steps += 1
        merged = merge_steps(self._in_backward, step, self._in_backward_count)
        self._in_backward = []
        self.preflight.facts.optimizer_in_backward = True
        self._give_loss(merged, None)
        self._publish(merged, step)

    @part("by hand")
    def _finish_by_hand(self, roots: Sequence[torch.Tensor] = (), leaves: list[torch.Tensor] | None = None) -> None:
        if self._hands is None or not self._fleet.empty:
            return
        pending = self._hands.finish_if_updated(leaves or self._hands.walk(roots))
        if pending is not None:
            self.preflight.facts.boundary = "backward"
            self._give_loss(pending, None)
            self._publish(pending, pending.frame.step)

    @part("observe")
    def observe(self) -> None:
        """Take the state as it is for a step: for loops without a torch optimizer."""
        with self.lock:
            holder = self._observed
            probe = self._fleet.add(holder, OBSERVED)
            self.preflight.facts.boundary = "observe"
            probe.begin(holder, self._options_for(probe), updated=True)
            self._finish(probe)

    def stop(self) -> None:
        """Finish what is open; called once, after the hooks are gone."""
        with self.lock:
            self._finish_by_hand()
        self.stop_flow()
        self.preflight.end(close=True)

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has run since the last step of any optimizer."""
        return self._losses.count > 0

    def renew_lock(self) -> threading.RLock:
        """Forget a lock that another thread of the parent process may have held when this one was forked."""
        self.lock = threading.RLock()
        return self.lock

    def state_dict(self) -> dict[str, Any]:
        """Return step counters, clip counts and the transform's state, by optimizer name."""
        return {"version": 1, "optimizers": self._fleet.counters(), "transform": self._treatment.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if not isinstance(state, Mapping) or state.get("version") != 1 or "optimizers" not in state:
            came = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
            raise InputError(f"state: expected what Monitor.state_dict() returned (version 1), got {came}")
        self._fleet.resume(state["optimizers"])
        self._treatment.load_state_dict(state.get("transform", {}))


def _closure_of(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any] | None, Callable[[Callable[..., Any]], StepArguments] | None]:
    """Find a closure among a step's arguments (self comes first), and how to put another in its place."""
    if callable(kwargs.get("closure")):
        return kwargs["closure"], lambda new: (tuple(args), {**kwargs, "closure": new})
    if len(args) > 1 and callable(args[1]):
        return args[1], lambda new: ((args[0], new, *args[2:]), dict(kwargs))
    return None, None


def _finite(value: torch.Tensor) -> bool:
    """Whether a tensor on the CPU is finite; a loss is one number, for which Python is quicker than torch."""
    if value.dim() == 0 and value.is_floating_point():
        return math.isfinite(value.item())
    return bool(torch.isfinite(value).all())
