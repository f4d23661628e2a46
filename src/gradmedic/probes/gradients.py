"""Reading gradients: before the user's own clipping changes them, and what the optimizer uses in the end.

A clip call announces itself before it multiplies, so the statistics of the gradients as they were are taken there,
once; at the step boundary nothing is read again unless someone changed a gradient since (its version counter tells).
Post-clip norms then follow by arithmetic from the factor that was applied.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from gradmedic.probes.across_ranks import global_norms, measure_gradients
from gradmedic.probes.positions import index_of
from gradmedic.stats import StatsTable
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.distribution import plain_scalar
from gradmedic.stats.mesh_layout import is_distributed
from gradmedic.stats.parts import local_gradient, readable
from gradmedic.torch_hooks import ClipCall
from gradmedic.types import Backend

#: A gradient's address and version counter.
Version = tuple[int, int]


@dataclass(slots=True)
class Clip:
    """One clipping of some tensors: the positions it touched, and how."""

    positions: list[int] | None  # None: all
    max_norm: float | None = None
    total_norm: torch.Tensor | None = None
    clip_value: float | None = None
    scale: torch.Tensor | None = None  # our own clipping: the factor itself, 0-d or one for each tensor touched
    clipped: torch.Tensor | None = None
    threshold: torch.Tensor | None = None


@dataclass(slots=True)
class Reading:
    """Gradients of some tensors at one moment, before any clipping.

    Attributes:
        keys: `id` of each parameter, in order.
        table: statistics (full), or None when only norms were taken.
        norms: L2 norms [N] when there is no table; NaN and infinity spread into them.
        versions: the gradients' version counters after all that we know of was done to them.
        clips: what was done to them since.
        remeasured: norms of tensors that were changed by something we did not see: position -> 0-d tensor.
        altered: whether something that is no clip has changed a gradient since.
        present: which tensors have a gradient on any rank, bool [N]; None: all.
    """

    keys: list[int]
    table: StatsTable | None
    norms: torch.Tensor | None
    versions: list[Version]
    clips: list[Clip] = field(default_factory=list)
    remeasured: tuple[list[int], torch.Tensor] | None = None
    altered: bool = False
    present: torch.Tensor | None = None

    def select(self, positions: Sequence[int]) -> Reading:
        """Return the reading of some of its tensors (several optimizers may share one clip call)."""
        if len(positions) == len(self.keys):
            return self
        places = {old: new for new, old in enumerate(positions)}
        index = torch.tensor(positions, dtype=torch.int64)
        part = Reading(
            [self.keys[at] for at in positions],
            None if self.table is None else _select(self.table, index),
            None if self.norms is None else self.norms[index.to(self.norms.device)],
            [self.versions[at] for at in positions],
            present=None if self.present is None else self.present[index.to(self.present.device)],
        )
        for clip in self.clips:
            touched = range(len(self.keys)) if clip.positions is None else clip.positions
            among = [place for place, at in enumerate(touched) if at in places]
            if among:
                whole = len(among) == len(positions)
                kept = [places[touched[place]] for place in among]
                scale = clip.scale
                if scale is not None and scale.dim():
                    scale = scale[index_of(among, scale.device)]
                part.clips.append(replace(clip, positions=None if whole else kept, scale=scale))
        return part

    @property
    def norm(self) -> torch.Tensor:
        """Pre-clip L2 norms [N], float64, on the gradients' device."""
        if self.table is not None:
            return self.table.norm
        assert self.norms is not None
        return self.norms

    def nonfinite(self) -> torch.Tensor:
        """Number of NaN and infinite elements, 0-d; from norms alone it is 1 for each tensor that has any."""
        return self.table.nonfinite() if self.table is not None else (~torch.isfinite(self.norm)).sum()


def _select(table: StatsTable, positions: torch.Tensor) -> StatsTable:
    at = positions.to(table.counts.device)
    histogram = None if table.log2_hist is None else table.log2_hist[at]
    return StatsTable(table.moments[:, at], table.counts[:, at], histogram)


def current_norms(reading: Reading) -> torch.Tensor:
    """Return the norms [N] after what the user's own clipping did; float64, no host sync."""
    values = reading.norm.clone()
    for clip in reading.clips:
        if clip.scale is not None:
            factor = clip.scale.to(values.device)
        elif clip.total_norm is not None and clip.max_norm is not None:
            total = clip.total_norm.to(values.device, values.dtype)
            factor = torch.clamp(clip.max_norm / (total + 1e-6), max=1.0)
        else:
            continue
        if clip.positions is None:
            values = values * factor
        else:
            index = index_of(clip.positions, values.device)
            values[index] = values[index] * factor
    if reading.remeasured is not None:
        index = index_of(reading.remeasured[0], values.device)
        values[index] = reading.remeasured[1].to(values.device)
    return values


class GradientReader:
    """Takes readings and keeps them until the step that they belong to.

    Args:
        backend: which statistics backend.

    Attributes:
        agreement: with the other ranks, where tensors lie on several of them.
    """

    def __init__(self, backend: Backend = "auto") -> None:
        self.agreement = Agreement()
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
        table, vector, present = measure_gradients(
            parameters, self.agreement, full=full, histogram=histogram, backend=self._backend
        )
        if factor is not None:
            table = None if table is None else table.scaled(factor)
            vector = None if vector is None else vector * factor.to(vector.device)
        versions = [_version(p) for p in parameters] if waits else []
        return Reading([id(p) for p in parameters], table, vector, versions, present=present)

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
        changed = mine if by_value else changed
        parameters = [wanted[reading.keys[at]] for at in changed]
        present = [(at, p) for at, p in zip(changed, parameters, strict=True) if readable(p)]
        if present:
            values = global_norms([_gradient_or_nothing(p) for _, p in present], self.agreement, backend=self._backend)
            values = values if divide_by is None else values / divide_by.double().to(values.device)
            reading.remeasured = ([at for at, _ in present], values)

    @staticmethod
    def _changed(parameter: torch.Tensor, version: Version) -> bool:
        return not is_distributed(parameter) and _version(parameter) != version


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
