"""Carrying out what a transform decides: at the step boundary, or just before the script's own clip.

Where the script clips by itself, ours comes first, on the gradients as they are; the step then finds the decision made.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradmedic.clip.access import Gradients
from gradmedic.clip.admission import admit, admit_in_backward, check_patterns
from gradmedic.clip.answers import ask, carrying_out
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.base import Decision, Halt, Reason, may_skip, settle
from gradmedic.clip.late_halts import LateHalts
from gradmedic.clip.spec import Spec, describe_tensors
from gradmedic.clip.state import State, export_state, import_state
from gradmedic.clip.withhold import DroppedGradients, FlaggedSkip, Withheld, honours_found_inf
from gradmedic.errors import InputError, TransformError
from gradmedic.host_copies import HostCopies
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.reading import join
from gradmedic.probes.together import Together
from gradmedic.probes.treated import Readings, note, summarise, unless_skipped, writable_gradients
from gradmedic.probes.treated_tensors import everything, second_moment_of, tensor_names
from gradmedic.roster import Roster
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.distribution import Distribution
from gradmedic.stats.parts import add_up_gradients, gradients_or_zeros
from gradmedic.torch_hooks import inside_backward
from gradmedic.types import Backend

#: Pinned memory for flags that end training.
_LATE_BYTES = 1 << 20


@dataclass(slots=True)
class Verdict:
    """What was decided about an open step.

    Attributes:
        decision: the transform's.
        skip: whether the step is skipped; None when only the device knows.
        asked: whether it was asked for why training is to end, which it says once.
    """

    decision: Decision
    skip: bool | None = False
    asked: bool = False


@dataclass(slots=True)
class _Patient:
    """One optimizer under treatment."""

    spec: Spec
    state: State
    before: State
    distribution: Distribution
    verdict: Verdict | None = None
    withheld: Withheld | None = None
    optimizer: weakref.ref[Any] | None = None
    reasons: tuple[Reason, ...] = ()
    notes: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Treatment:
    """Keeps a transform's state for each optimizer and applies its decisions.

    With several optimizers each is treated by itself: their steps are made at different moments.

    Args:
        transform: what to do to gradients; None: nothing.
        roster: the models, for the kinds of modules.
        backend: statistics backend; "torch" takes the path of a device, on which nothing is read back.
        agreement: with the other ranks.
    """

    def __init__(
        self, transform: Any, roster: Roster, backend: Backend = "auto", agreement: Agreement | None = None
    ) -> None:
        self._agreement = agreement or Agreement()
        self.together = Together(self._agreement)
        self._waits = 0
        self._copies = HostCopies(_LATE_BYTES)
        self._late = LateHalts(self._copies)  # of all optimizers: an end of training is none of one alone
        self.uncredited: deque[torch.Tensor] = deque(maxlen=16)  # emptied by a scaler's update, if there is one
        self._transform = transform
        self._roster = roster
        self._backend: Backend = backend
        self._patients: dict[str, _Patient] = {}
        self._saved: dict[str, Any] = {}
        self._checked = False

    @property
    def active(self) -> bool:
        """Whether there is a transform."""
        return self._transform is not None

    @property
    def host_syncs(self) -> int:
        """How often training was held up: where an optimizer that cannot skip by itself had to be told what to do."""
        return self._waits + self._copies.waits

    def prepare(self, probe: OptimizerProbe, optimizer: Any) -> None:
        """Make ready for an optimizer before its first step; raises TransformError where the transform does not fit."""
        if self._transform is not None:
            self._patient(probe, optimizer)

    def apply(
        self,
        probe: OptimizerProbe,
        optimizer: Any,
        readings: Readings,
        *,
        loss: torch.Tensor | None,
        loss_scale: torch.Tensor | None = None,
        early: bool = False,
    ) -> Halt | None:
        """Decide about the open step of an optimizer, change its gradients, and note it in the readings.

        Args:
            probe, optimizer: whose step it is.
            readings: what was measured of its gradients, with the positions of its tensors.
            loss: the step's loss in true units, 0-d, or None.
            loss_scale: what the gradients are still multiplied by.
            early: the step itself comes later (the script is about to clip).

        Returns:
            Why training is to end, or None.
        """
        if self._transform is None or not (readings or probe.spans):  # others may have gradients, and wait
            return None
        join([reading for reading, _ in readings])
        patient = self._patient(probe, optimizer)
        if patient.withheld is not None:  # the step before has raised
            patient.withheld.abandon()
            patient.withheld = None
        if any(reading.altered for reading, _ in readings):
            self.retract(probe)  # decided about early, and changed since by something that is no clip
        verdict, patient.verdict = patient.verdict, None
        if verdict is None:
            verdict = self._decide(patient, probe, optimizer, readings, loss, loss_scale)
        if not early and verdict.decision.skip is not None:
            self._withhold(patient, probe, optimizer, verdict)
        halt = self._halt(verdict, probe.step)
        if early and (halt is None or callable(halt.on_trip)):
            patient.verdict = verdict
        return halt

    def _patient(self, probe: OptimizerProbe, optimizer: Any) -> _Patient:
        patient = self._patients.get(probe.name)
        if patient is not None and patient.spec.names == probe.names:
            return patient
        admit(self._transform, optimizer)
        if inside_backward():
            admit_in_backward(self._transform)
        parameters = probe.parameters(probe.reference() or optimizer)
        spec = describe_tensors(parameters, probe.names, self._roster.models)
        self._forget_dead()
        try:
            if not self._checked:
                check_patterns(self._transform, everything(self._roster))
                self._checked = True
            state: State = self._transform.init(spec)
            if patient is not None:  # tensors came or went: what is known of the others stays
                state = import_state(state, export_state(patient.state, patient.spec.names), spec.names)
            elif probe.name in self._saved:
                state = import_state(state, self._saved.pop(probe.name), spec.names)
        except InputError as error:
            raise TransformError(str(error)) from None
        distribution = Distribution(parameters, self._agreement)
        self.together.admit(probe, parameters, distribution)
        patient = _Patient(spec, state, state, distribution)
        patient.optimizer = probe.reference
        self._patients[probe.name] = patient
        return patient

    def _forget_dead(self) -> None:
        """Drop the patients whose optimizer is gone: a loop that makes a new one every epoch leaves many."""
        gone = [name for name, patient in self._patients.items() if patient.optimizer and patient.optimizer() is None]
        for name in gone:
            del self._patients[name]

    def _decide(
        self,
        patient: _Patient,
        probe: OptimizerProbe,
        optimizer: Any,
        readings: Readings,
        loss: torch.Tensor | None,
        loss_scale: torch.Tensor | None,
    ) -> Verdict:
        parameters = probe.open_parameters or probe.parameters(probe.reference() or optimizer)
        if not patient.distribution.plain:
            add_up_gradients(parameters)
        gradients = gradients_or_zeros(parameters)
        distribution = patient.distribution
        self.together.ask(probe, parameters, distribution)
        access = Gradients(patient.spec, parameters, gradients, second_moment_of(optimizer), loss_scale, distribution)
        loss = self.together.loss(self._transform, loss, probe, parameters)
        on_host = self._on_host(patient.spec)
        summary = summarise(patient.spec, readings, access, probe.step, loss, probe.spans, on_host=on_host)
        decision, after = ask(self._transform, summary, patient.state)
        self.together.compare(decision, probe, parameters, distribution)
        ending = self._late.skip(patient.spec.device)
        if ending is not None:
            decision = replace(decision, skips=(*decision.skips, ending))
        patient.before = patient.state
        patient.state = settle(self._transform, patient.state, after, decision.skip)
        skip = self._known(decision.skip)
        withheld = decision.skip if skip is None else None  # only the device knows
        if withheld is not None:
            decision = unless_skipped(decision, withheld)
        verdict = Verdict(decision, skip)
        patient.notes = {key: torch.as_tensor(value) for key, value in decision.notes.items()}
        if not skip:
            shared: list[int] = []
            if decision.operations:
                gradients = writable_gradients(parameters, gradients)
                with carrying_out(self._transform):
                    shared = apply_operations(gradients, decision.operations, on_host=on_host, loss_scale=loss_scale)
            # To measure sharded tensors again all ranks have to, and one may have an empty part of what is shared.
            shared = shared if distribution.plain else []
            note(readings, decision, gradients, loss_scale, self._backend, distribution, withheld, shared)
        return verdict

    def _on_host(self, spec: Spec) -> bool:
        return self._backend != "torch" and spec.device.type == "cpu"

    def _known(self, flag: torch.Tensor | None) -> bool | None:
        if flag is None:
            return False
        return bool(flag) if self._backend != "torch" and flag.device.type == "cpu" else None

    def _withhold(self, patient: _Patient, probe: OptimizerProbe, optimizer: Any, verdict: Verdict) -> None:
        decision, skip = verdict.decision, verdict.skip
        flag = decision.skip
        assert flag is not None
        if skip is None and honours_found_inf(optimizer):
            patient.withheld = FlaggedSkip(optimizer, flag)
        else:
            if skip is None:  # this optimizer cannot skip by itself: somebody has to know
                self._waits += 1
                skip = bool(flag.cpu())
            if skip:
                patient.withheld = DroppedGradients(probe.parameters(probe.reference() or optimizer))
        if patient.withheld is not None:
            self.uncredited.append(flag)
            patient.reasons = (*decision.skips, *(Reason(halt.flag, halt.text) for halt in decision.halts))

    def _halt(self, verdict: Verdict, step: int) -> Halt | None:
        """Return why training is to end: by what has arrived from steps before, or by what is known now."""
        tripped = self._late.arrived()
        asked, verdict.asked = verdict.asked, True
        halts = [] if asked else [replace(halt, step=step) for halt in verdict.decision.halts]
        known = [(halt, self._known(halt.flag)) for halt in halts]
        tripped += [halt for halt, flag in known if flag]
        self._late.send([halt for halt, flag in known if flag is None])
        ends = [halt for halt in tripped if not callable(halt.on_trip)]
        if ends:
            self._late.ended()
        return next(iter(ends or tripped), None)

    def conclude(self, probe: OptimizerProbe, pending: PendingFrame) -> None:
        """The optimizer has stepped (or passed the step over): say so in its frame, and put back what was taken."""
        self.describe(probe, pending)
        self.stepped(probe)

    def describe(self, probe: OptimizerProbe, pending: PendingFrame) -> None:
        """Say in the step's frame what was decided about it."""
        patient = self._patients.get(probe.name)
        if patient is not None:
            pending.skips = patient.reasons
            pending.logged.update(patient.notes)
            patient.notes = {}

    def stepped(self, probe: OptimizerProbe) -> None:
        """The optimizer has stepped (or passed the step over): put back what was taken away for that."""
        patient = self._patients.get(probe.name)
        if patient is not None and patient.withheld is not None:
            patient.withheld.put_back()
            patient.withheld, patient.reasons = None, ()

    def hand_over(self, probe: OptimizerProbe) -> Withheld | None:
        """Return what was taken away for the step, to whoever will put it back."""
        patient = self._patients.get(probe.name)
        if patient is None:
            return None
        withheld, patient.withheld, patient.reasons = patient.withheld, None, ()
        return withheld

    def close(self) -> None:
        """Put back everything that is still taken away: watching ends in the middle of a step."""
        for patient in self._patients.values():
            if patient.withheld is not None:
                patient.withheld.put_back()
                patient.withheld = None

    def retract(self, probe: OptimizerProbe) -> None:
        """The gradients that were decided about early have changed, or are gone: the step decides anew."""
        patient = self._patients.get(probe.name)
        if patient is not None and patient.verdict is not None:
            patient.verdict = None
            patient.state = patient.before

    def decided(self, probe: OptimizerProbe) -> bool:
        """Whether the coming step was decided about early."""
        patient = self._patients.get(probe.name)
        return patient is not None and patient.verdict is not None

    def may_skip(self) -> bool:
        """Whether the transform may skip steps."""
        return self._transform is not None and may_skip(self._transform)

    def state_dict(self) -> dict[str, Any]:
        """Return the transform's states, by optimizer and tensor name."""
        held = {name: export_state(patient.state, patient.spec.names) for name, patient in self._patients.items()}
        return {**self._saved, **held}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Take over states; those of optimizers not seen yet wait for them.

        Raises:
            InputError: they are another transform's.
        """
        if self._transform is not None:
            for name, saved in states.items():
                names = sorted(tensor_names(saved))
                fresh = self._transform.init(Spec.of_names(names))
                import_state(fresh, saved, names, f"transform[{name!r}]")
        self._saved = dict(states)
        for name, patient in self._patients.items():
            patient.verdict = None
            if name in self._saved:
                fresh = self._transform.init(patient.spec)
                patient.state = import_state(fresh, self._saved.pop(name), patient.spec.names, f"transform[{name!r}]")
