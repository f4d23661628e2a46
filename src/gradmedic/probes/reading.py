"""What was measured of gradients at one moment, and what has been done to them since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from gradmedic.probes.positions import index_of
from gradmedic.stats import StatsTable
from gradmedic.stats.distribution import Distribution
from gradmedic.stats.joining import Joining, run_together
from gradmedic.stats.transfer import moved, to_device

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
    withheld: torch.Tensor | None = None  # where only the device knows: the step was skipped, nothing of this counts


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
        repeated: keys of tensors that a clip has multiplied more than once: listed twice, or one memory with another.
        present: which tensors have a gradient on any rank, bool [N]; None: all.
        apart: how the tensors lie on the ranks, as long as the table is of what lies here; None once it is of the
            whole. What the statistics are still multiplied by is then in `factor`.
    """

    keys: list[int]
    table: StatsTable | None
    norms: torch.Tensor | None
    versions: list[Version]
    clips: list[Clip] = field(default_factory=list)
    remeasured: tuple[list[int], torch.Tensor] | None = None
    altered: bool = False
    repeated: set[int] = field(default_factory=set)
    present: torch.Tensor | None = None
    apart: Distribution | None = None
    factor: torch.Tensor | None = None

    def joining(self) -> Joining[None]:
        """Make the table one of whole tensors, together with what else is joined."""
        if self.apart is None or self.table is None:
            return
        table = yield from self.apart.joining_table(self.table)
        there = table.numel > 0
        self.present = there if self.present is None else there | self.present.to(there.device, non_blocking=True)
        self.table = table if self.factor is None else table.scaled(self.factor)
        self.apart = self.factor = None

    def select(self, positions: Sequence[int]) -> Reading:
        """Return the reading of some of its tensors (several optimizers may share one clip call)."""
        if len(positions) == len(self.keys):
            return self
        places = {old: new for new, old in enumerate(positions)}
        index = torch.tensor(positions, dtype=torch.int64, device="cpu")
        part = Reading(
            [self.keys[at] for at in positions],
            None if self.table is None else _select(self.table, index),
            None if self.norms is None else self.norms[to_device(index, self.norms.device)],
            [self.versions[at] for at in positions],
            present=None if self.present is None else self.present[to_device(index, self.present.device)],
            apart=None if self.apart is None else self.apart.among(positions),
            factor=self.factor,
            repeated=self.repeated,
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

    @property
    def device(self) -> torch.device:
        """Where the statistics lie."""
        return self.table.moments.device if self.table is not None else self.norm.device

    def nonfinite(self) -> torch.Tensor:
        """Number of NaN and infinite elements, 0-d; from norms alone it is 1 for each tensor that has any."""
        return self.table.nonfinite() if self.table is not None else (~torch.isfinite(self.norm)).sum()


def _select(table: StatsTable, positions: torch.Tensor) -> StatsTable:
    at = to_device(positions, table.counts.device)
    histogram = None if table.log2_hist is None else table.log2_hist[at]
    return StatsTable(table.moments[:, at], table.counts[:, at], histogram)


def current_norms(reading: Reading) -> torch.Tensor:
    """Return the norms [N] after what the user's own clipping did; float64, no host sync."""
    values = reading.norm.clone()
    for clip in reading.clips:
        if clip.scale is not None:
            factor = moved(clip.scale, values.device)
        elif clip.total_norm is not None and clip.max_norm is not None:
            total = moved(clip.total_norm, values.device, values.dtype)
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
        values[index] = moved(reading.remeasured[1], values.device)
    return values


def join(readings: Sequence[Reading]) -> None:
    """Make all tables those of whole tensors, in two collectives a mesh; every rank must do it at the same time."""
    apart = [reading for reading in readings if reading.apart is not None]
    if apart:
        run_together([reading.joining() for reading in apart])
