"""Reading gradients: before the user's own clipping changes them, and what the optimizer uses in the end.

A clip call announces itself before it multiplies, so the statistics of the gradients as they were are taken there,
once; at the step boundary nothing is read again unless someone changed a gradient since (its version counter tells).
Post-clip norms then follow by arithmetic from the factor that was applied.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from gradmedic.probes.across_ranks import Layouts, global_norms, measure_gradients
from gradmedic.probes.engines import EngineSteps
from gradmedic.probes.rank_groups import RankGroups
from gradmedic.probes.reading import Clip as Clip
from gradmedic.probes.reading import Reading as Reading
from gradmedic.probes.reading import Version
from gradmedic.probes.reading import current_norms as current_norms
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.distribution import plain_scalar
from gradmedic.stats.mesh_layout import is_distributed
from gradmedic.stats.parts import local_gradient, readable
from gradmedic.stats.transfer import moved
from gradmedic.torch_hooks import ClipCall
from gradmedic.types import Backend


class GradientReader:
    """Takes readings and keeps them until the step that they belong to.

    Args:
        backend: which statistics backend.
        groups: what the user says of tensors whose likes lie on other ranks.

    Attributes:
        agreement: with the other ranks, where tensors lie on several of them.
        engines: knows who keeps gradients that cannot be seen.
    """

    def __init__(self, backend: Backend = "auto", groups: RankGroups | None = None) -> None:
        self.agreement = Agreement()
        self.groups = groups
        self._layouts = Layouts(self.agreement)
        self.engines: EngineSteps | None = None
        self._backend: Backend = backend
        self._waiting: list[Reading] = []
        self._holders: dict[int, weakref.ref[torch.Tensor]] = {}

    def measure(
        self,
        parameters: Sequence[torch.Tensor],
        *,
        full: bool,
        histogram: bool = False,
        divide_by: torch.Tensor | None = None,
        waits: bool = True,
    ) -> Reading:
        """Measure the gradients of the parameters, all of which must be `readable`.

        Args:
            parameters: tensors with `.grad`, or of which another rank may have one.
            full: the whole table, or norms only.
            histogram: with the log2 histogram.
            divide_by: loss scale that the gradients still carry (0-d tensor), divided out of the statistics.
            waits: whether gradients may change before the reading is used, so that their versions matter.
        """
        factor = None if divide_by is None else 1.0 / divide_by.double()
        table, vector, present, apart = measure_gradients(
            parameters, self._layouts, full=full, histogram=histogram, backend=self._backend
        )
        if factor is not None and apart is None:
            table = None if table is None else table.scaled(factor)
            vector = None if vector is None else vector * moved(factor, vector.device)
            factor = None
        versions = [_version(p) for p in parameters] if waits else []
        keys = [id(p) for p in parameters]
        return Reading(keys, table, vector, versions, present=present, apart=apart, factor=factor)

    def before_clip(
        self,
        watched: Sequence[torch.Tensor],
        *,
        full: bool,
        histogram: bool = False,
        divide_by: torch.Tensor | None,
    ) -> None:
        """Take the reading that a clip call is about to destroy, for watched tensors that have none yet."""
        taken = {key for reading in self._waiting for key in reading.keys}
        fresh = [p for p in watched if readable(p) and id(p) not in taken]
        if not self._waiting:
            self._holders.clear()
        if fresh:
            self._waiting.append(self.measure(fresh, full=full, histogram=histogram, divide_by=divide_by))
            self._holders.update((id(parameter), weakref.ref(parameter)) for parameter in fresh)

    def after_clip(self, call: ClipCall) -> None:
        """Note what the call did, and the versions that it left."""
        touched = {id(parameter): parameter for parameter in call.parameters}
        for reading in self._waiting:
            at = [position for position, key in enumerate(reading.keys) if key in touched]
            if not at:
                continue
            total = plain_scalar(call.total_norm.detach()).clone() if call.total_norm is not None else None
            everything = len(at) == len(reading.keys)
            reading.clips.append(Clip(None if everything else at, call.max_norm, total, call.clip_value))
            for position in at:
                reading.versions[position] = _version(touched[reading.keys[position]])
            places = {reading.versions[position][0] for position in at}
            if len(places) < len(at) or len(touched) < len(call.parameters):
                reading.repeated |= _repeated(call.parameters)

    def touched(self, parameters: Sequence[torch.Tensor]) -> None:
        """What happened to these gradients since is known and changes no value (an unscale that was accounted for)."""
        known = {id(parameter): parameter for parameter in parameters}
        for reading in self._waiting:
            for position, key in enumerate(reading.keys):
                if key in known:
                    reading.versions[position] = _version(known[key])

    def waiting_for(self, parameters: Sequence[torch.Tensor]) -> list[tuple[Reading, list[int]]]:
        """Return the readings that have been taken of these tensors, with the places of theirs among them.

        Only those whose tensors are all among the parameters: what belongs to others as well is not ours to change.
        """
        places = {id(parameter): at for at, parameter in enumerate(parameters)}
        return [
            (reading, [places[key] for key in reading.keys])
            for reading in self._waiting
            if all(key in places for key in reading.keys)
        ]

    @property
    def waiting(self) -> bool:
        """Whether there are readings that no step has used yet."""
        return bool(self._waiting)

    def forget(self) -> None:
        """Drop all readings: their gradients are gone."""
        self._waiting.clear()

    def forget_changed(self) -> bool:
        """Drop the readings of gradients that were changed since by something unknown; returns whether any was."""
        kept: list[Reading] = []
        changed = False
        for reading in self._waiting:
            same = [at for at, key in enumerate(reading.keys) if self._unchanged(key, reading.versions[at])]
            changed |= len(same) < len(reading.keys)
            if same:
                kept.append(reading.select(same))
        self._waiting = kept
        return changed

    def _unchanged(self, key: int, version: Version) -> bool:
        parameter = self._holders[key]()
        return parameter is not None and _version(parameter) == version

    def take(
        self,
        parameters: Sequence[torch.Tensor],
        *,
        full: bool,
        histogram: bool,
        divide_by: torch.Tensor | None,
    ) -> list[Reading]:
        """Return the readings that together cover the parameters, measuring what no clip call had measured.

        Readings of other optimizers' tensors, which a shared clip call has taken, go on waiting.
        """
        if not self._waiting:
            return [self.measure(parameters, full=full, histogram=histogram, divide_by=divide_by, waits=False)]
        wanted = {id(parameter): parameter for parameter in parameters}
        used: list[Reading] = []
        rest: list[Reading] = []
        for reading in self._waiting:
            mine = [at for at, key in enumerate(reading.keys) if key in wanted]
            if mine:
                used.append(reading.select(mine))
            if len(mine) < len(reading.keys):
                taken = set(mine)
                rest.append(reading.select([at for at in range(len(reading.keys)) if at not in taken]))
        self._waiting = rest
        for reading in used:
            self._remeasure(reading, wanted, divide_by)
        covered = {key for reading in used for key in reading.keys}
        missing = [parameter for parameter in parameters if id(parameter) not in covered]
        if missing:
            used.append(self.measure(missing, full=full, histogram=histogram, divide_by=divide_by, waits=False))
        return used

    def _remeasure(self, reading: Reading, wanted: dict[int, torch.Tensor], divide_by: torch.Tensor | None) -> None:
        by_value = any(clip.clip_value is not None for clip in reading.clips)
        mine = [position for position, key in enumerate(reading.keys) if key in wanted]
        # Whether a tensor that lies on several ranks was changed by something unknown is not asked: one rank alone
        # might say yes, and would wait for the others in a collective. That a clip by value was made, all know.
        changed = [at for at in mine if self._changed(wanted[reading.keys[at]], reading.versions[at])]
        reading.altered = bool(changed)
        if by_value:
            changed = mine
        elif reading.repeated:  # multiplied twice, which no arithmetic on one factor shows
            again = {at for at in mine if reading.keys[at] in reading.repeated}
            changed = sorted(again.union(changed))
        parameters = [wanted[reading.keys[at]] for at in changed]
        present = [(at, p) for at, p in zip(changed, parameters, strict=True) if readable(p)]
        if present:
            values = global_norms([_gradient_or_nothing(p) for _, p in present], self.agreement, backend=self._backend)
            values = values if divide_by is None else values / moved(divide_by.double(), values.device)
            reading.remeasured = ([at for at, _ in present], values)

    @staticmethod
    def _changed(parameter: torch.Tensor, version: Version) -> bool:
        return not is_distributed(parameter) and _version(parameter) != version


def _repeated(parameters: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of tensors whose gradient's memory is in the list more than once.

    Those that lie on several ranks are left out: one rank alone would measure them again, and wait for the others.
    """
    places: dict[int, list[int]] = {}
    for parameter in parameters:
        place = -1 if is_distributed(parameter) else _version(parameter)[0]
        if place not in (-1, 0):  # no gradient, or one without an element
            places.setdefault(place, []).append(id(parameter))
    return {key for keys in places.values() if len(keys) > 1 for key in keys}


def _gradient_or_nothing(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient; in place of one that only other ranks have, zeros that lie as it would."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _version(parameter: torch.Tensor) -> Version:
    """Return what changes when a gradient is written to, or exchanged for another."""
    gradient = local_gradient(parameter)
    if gradient is None:
        return (-1, -1)
    try:
        where = gradient.data_ptr() if gradient.layout is torch.strided else id(gradient)
        return where, int(gradient._version)
    except RuntimeError:  # inference tensors keep no version, wrappers have no address
        return (id(gradient), -1)
