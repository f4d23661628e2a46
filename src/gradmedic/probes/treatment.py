"""Carrying out what a transform decides: at the step boundary, or just before the script's own clip.

Where the script clips by itself, ours comes first, on the gradients as they are; the step then finds the decision made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradmedic.clip.access import Gradients
from gradmedic.clip.admission import admit, admit_in_backward, check_patterns
from gradmedic.clip.apply import apply_operations, touched
from gradmedic.clip.base import Decision, Halt, Reason, may_skip, settle
from gradmedic.clip.late import LateFlag
from gradmedic.clip.operations import Operation, Scale
from gradmedic.clip.spec import Spec, describe_tensors
from gradmedic.clip.state import State, export_state, import_state
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.withhold import Undo, drop_gradients, honours_found_inf, skip_on_device
from gradmedic.probes.gradients import Clip, Reading, current_norms
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.errors import InputError, TransformError
from gradmedic.roster import Roster, live_models
from gradmedic.stats import norms
from gradmedic.torch_hooks import inside_backward
from gradmedic.types import Backend

Readings = list[tuple[Reading, list[int]]]


@dataclass(slots=True)
class Verdict:
    """What was decided about an open step.

    Attributes:
        decision: the transform's.
        skip: whether the step is skipped; None when only the device knows.
    """

    decision: Decision
    skip: bool | None = False


@dataclass(slots=True)
class _Patient:
    """One optimizer under treatment."""

    spec: Spec
    state: State
    before: State
    verdict: Verdict | None = None
    undo: Undo | None = None
    reasons: tuple[Reason, ...] = ()
    late: list[tuple[LateFlag, Halt]] = field(default_factory=list)


class Treatment:
    """Keeps a transform's state for each optimizer and applies its decisions.

    With several optimizers each is treated by itself: their steps are made at different moments.

    Args:
        transform: what to do to gradients; None: nothing.
        roster: the models, for the kinds of modules.
        backend: statistics backend; "torch" takes the path of a device, on which nothing is read back.
    """

    def __init__(self, transform: Any, roster: Roster, backend: Backend = "auto") -> None:
        self.host_syncs = 0
        self.uncredited: list[torch.Tensor] = []
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
        if self._transform is None or not readings:
            return None
        patient = self._patient(probe, optimizer)
        verdict, patient.verdict = patient.verdict, None
        if verdict is None:
            verdict = self._decide(patient, probe, optimizer, readings, loss, loss_scale)
        if early:
            patient.verdict = verdict
        elif verdict.decision.skip is not None:
            self._withhold(patient, probe, optimizer, verdict)
        return self._halt(patient, verdict)

    def _patient(self, probe: OptimizerProbe, optimizer: Any) -> _Patient:
        patient = self._patients.get(probe.name)
        if patient is not None and patient.spec.names == probe.names:
            return patient
        admit(self._transform, optimizer)
        if inside_backward():
            admit_in_backward(self._transform)
        parameters = probe.parameters(probe.reference() or optimizer)
        spec = describe_tensors(parameters, probe.names, self._roster.models)
        try:
            if not self._checked:
                check_patterns(self._transform, everything(self._roster))
                self._checked = True
            state: State = self._transform.init(spec)
        except InputError as error:
            raise TransformError(str(error)) from None
        if patient is not None:  # tensors came or went: what is known of the others stays
            state = import_state(state, export_state(patient.state, patient.spec.names), spec.names)
        elif probe.name in self._saved:
            state = import_state(state, self._saved.pop(probe.name), spec.names)
        patient = _Patient(spec, state, state)
        self._patients[probe.name] = patient
        return patient

    def _decide(
        self,
        patient: _Patient,
        probe: OptimizerProbe,
        optimizer: Any,
        readings: Readings,
        loss: torch.Tensor | None,
        loss_scale: torch.Tensor | None,
    ) -> Verdict:
        parameters = probe.parameters(probe.reference() or optimizer)
        gradients = [parameter.grad for parameter in parameters]
        access = Gradients(patient.spec, parameters, gradients, _second_moment_of(optimizer), loss_scale)
        summary = summarise(patient.spec, readings, access, probe.step, loss)
        decision, after = self._transform.update(summary, patient.state)
        patient.before = patient.state
        patient.state = settle(self._transform, patient.state, after, decision.skip)
        skip = self._known(decision.skip)
        verdict = Verdict(decision, skip)
        if not skip:
            apply_operations(gradients, decision.operations, on_host=self._on_host(patient.spec), loss_scale=loss_scale)
            note(readings, decision, gradients, loss_scale, self._backend)
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
            patient.undo = skip_on_device(optimizer, flag)
        else:
            if skip is None:  # this optimizer cannot skip by itself: somebody has to know
                self.host_syncs += 1
                skip = bool(flag.cpu())
            if skip:
                patient.undo = drop_gradients(probe.parameters(probe.reference() or optimizer))
        if patient.undo is not None:
            self.uncredited.append(flag)
            patient.reasons = (*decision.skips, *(Reason(halt.flag, halt.text) for halt in decision.halts))

    def _halt(self, patient: _Patient, verdict: Verdict) -> Halt | None:
        """Return why training is to end: by what is known now, or by what has arrived from steps before."""
        waiting, patient.late = patient.late, []
        tripped: Halt | None = None
        for late, halt in waiting:
            flag = late.read()
            if flag is None:
                patient.late.append((late, halt))
            elif flag and tripped is None:
                tripped = halt
        for halt in verdict.decision.halts:
            known = self._known(halt.flag)
            if known and tripped is None:
                tripped = halt
            elif known is None:
                patient.late.append((LateFlag(halt.flag), halt))
        return tripped

    def reasons(self, probe: OptimizerProbe) -> tuple[Reason, ...]:
        """Return why the step that was just decided about may be skipped."""
        patient = self._patients.get(probe.name)
        return () if patient is None else patient.reasons

    def stepped(self, probe: OptimizerProbe) -> None:
        """The optimizer has stepped (or passed the step over): put back what was taken away for that."""
        patient = self._patients.get(probe.name)
        if patient is not None and patient.undo is not None:
            patient.undo()
            patient.undo, patient.reasons = None, ()

    def forget_undo(self, probe: OptimizerProbe) -> None:
        """What was taken away for the step stays so."""
        patient = self._patients.get(probe.name)
        if patient is not None:
            patient.undo, patient.reasons = None, ()

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
        """Take over states; those of optimizers not seen yet wait for them."""
        self._saved = dict(states)
        for name, patient in self._patients.items():
            if name in self._saved:
                fresh = self._transform.init(patient.spec)
                patient.state = import_state(fresh, self._saved.pop(name), patient.spec.names, f"transform[{name!r}]")


def _second_moment_of(optimizer: Any) -> Callable[[torch.Tensor], torch.Tensor | None]:
    def read(parameter: torch.Tensor) -> torch.Tensor | None:
        state = getattr(optimizer, "state", {}).get(parameter)
        moment = state.get("exp_avg_sq") if isinstance(state, Mapping) else None
        return moment if isinstance(moment, torch.Tensor) and moment.shape == parameter.shape else None

    return read


def summarise(
    spec: Spec, readings: Readings, access: Gradients, step: int, loss: torch.Tensor | None
) -> GradientSummary:
    """Return what a transform may know, from what was measured of the gradients already."""
    if len(readings) == 1 and len(readings[0][1]) == len(spec):
        reading = readings[0][0]
        if readings[0][1] == list(range(len(spec))):
            return _of_reading(spec, reading, access, step, loss)
    size, home = len(spec), spec.device
    norm = torch.zeros(size, dtype=torch.float64, device=home)
    sick = torch.zeros(size, dtype=torch.int64, device=home)
    seen = torch.zeros(size, dtype=torch.bool, device=home)
    for reading, positions in readings:
        index = torch.tensor(positions, device=home)
        part = _of_reading(spec, reading, access, step, loss)
        norm[index], sick[index], seen[index] = part.norm.to(home), part.nonfinite.to(home), True
    return GradientSummary(spec, norm, sick, seen, step, loss, gradients=access)


def _of_reading(
    spec: Spec, reading: Reading, access: Gradients, step: int, loss: torch.Tensor | None
) -> GradientSummary:
    norm, table = current_norms(reading), reading.table
    if table is None:
        finite = torch.isfinite(norm)
        norm = torch.where(finite, norm, torch.zeros_like(norm))
        return GradientSummary(spec, norm, (~finite).long(), None, step, loss, gradients=access)
    sick = table.nan_count + table.inf_count
    untouched = not reading.clips and reading.remeasured is None
    largest = table.max_abs if untouched else None
    l1 = table.mean_abs * (table.numel - sick) if untouched else None
    return GradientSummary(spec, norm, sick, None, step, loss, largest, l1, access)


def note(
    readings: Readings,
    decision: Decision,
    gradients: list[torch.Tensor | None],
    loss_scale: torch.Tensor | None,
    backend: Backend,
) -> None:
    """Note in the readings what was done to their gradients; norms follow by arithmetic where they can."""
    factor = decision.scale
    changed = {at for operation in decision.operations for at in _changed(operation, gradients)}
    for reading, positions in readings:
        own = factor if not factor.dim() else factor[torch.tensor(positions, device=factor.device)]
        before = current_norms(reading) if changed else None
        if reading.remeasured is not None:
            at, values = reading.remeasured
            mine = own if not own.dim() else own[torch.tensor(at, device=own.device)]
            reading.remeasured = (at, values * mine.to(values.device))
        mine_changed = [at for at, position in enumerate(positions) if position in changed]
        if mine_changed and before is not None:
            after = norms([g for at in mine_changed if (g := gradients[positions[at]]) is not None], backend=backend)
            after = after if loss_scale is None else after / loss_scale.double().to(after.device)
            own = own.expand(len(positions)).clone()
            index = torch.tensor(mine_changed, device=own.device)
            former = before[index]
            ratio = torch.where(former > 0, after.to(former.device) / former, torch.ones_like(former))
            own[index] = torch.where(torch.isfinite(ratio), ratio, torch.ones_like(ratio))
        flag = None if decision.clipped is None else decision.clipped.double()
        reading.clips.append(Clip(None, scale=own, clipped=flag, threshold=decision.threshold))


def _changed(operation: Operation, gradients: list[torch.Tensor | None]) -> list[int]:
    if isinstance(operation, Scale):
        return []
    return [at for at in touched(operation) if gradients[at] is not None]


def everything(roster: Roster) -> Spec:
    """Return all tensors that are watched; where models are found one by one, those of all live models as well."""
    entries = [(entry.name, p) for entry in roster.parameters if (p := entry.reference()) is not None]
    models = dict(roster.models)
    if roster.discovering:  # a pattern may mean a model whose optimizer has not stepped yet
        known = {id(parameter) for _, parameter in entries}
        for at, model in enumerate(live_models()):
            models.setdefault(f"(live {at})", model)
            entries += [(name, p) for name, p in model.named_parameters() if id(p) not in known]
    names, parameters = [name for name, _ in entries], [parameter for _, parameter in entries]
    return describe_tensors(parameters, names, models)


def keep_scale(scaler: Any, skipped: torch.Tensor, scale: torch.Tensor, tracker: torch.Tensor) -> None:
    """Undo a GradScaler's growth where a step was skipped by a guard; a back-off, which others caused, stays."""
    now, count = scaler._scale, scaler._growth_tracker
    if now is None or count is None:
        return
    flag = skipped.to(now.device)
    backed_off = now < scale
    now.copy_(torch.where(flag, torch.minimum(now, scale), now))
    count.copy_(torch.where(flag & ~backed_off, tracker, count))
