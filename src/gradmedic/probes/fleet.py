"""The optimizers that are followed: given by the user, or found when they step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradmedic.holdings import held_by
from gradmedic.names import unique
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.pending import ClipCount
from gradmedic.roster import Roster
from gradmedic.types import Backend


class Fleet:
    """Knows the probe of each optimizer.

    Args:
        roster: the watched models.
        reader: where clip calls leave their readings.
        backend: which statistics backend.
        optimizers: name -> optimizer to follow; None: every one that steps a parameter of the models.
    """

    def __init__(
        self, roster: Roster, reader: GradientReader, backend: Backend, optimizers: Mapping[str, Any] | None
    ) -> None:
        self.name_by: Callable[[Any, Sequence[str]], str] = _default_name
        self._roster = roster
        self._reader = reader
        self._backend: Backend = backend
        self._explicit = optimizers is not None
        self._probes: dict[int, OptimizerProbe] = {}
        self._resumed: dict[str, dict[str, int]] = {}
        self._names: list[str] = []
        for name, optimizer in (optimizers or {}).items():
            self.add(optimizer, name)

    @property
    def probes(self) -> list[OptimizerProbe]:
        """Every probe, once."""
        return list({id(probe): probe for probe in self._probes.values()}.values())

    @property
    def empty(self) -> bool:
        """Whether no optimizer is followed yet."""
        return not self._probes

    def add(self, optimizer: Any, name: str) -> OptimizerProbe:
        """Follow an optimizer (anything with `param_groups`), or return its probe if it is followed already."""
        known = self.known(optimizer)
        if known is not None:
            return known
        if not self._explicit:  # a loop that makes a new optimizer every epoch leaves many
            self._probes = {key: each for key, each in self._probes.items() if each.reference() is not None}
        self._names.append(name)
        probe = OptimizerProbe(optimizer, name, self._roster, self._reader, self._backend)
        probe.parameters(optimizer)
        self._resume(probe)
        self._probes[id(optimizer)] = probe
        return probe

    def known(self, optimizer: Any) -> OptimizerProbe | None:
        """Return an optimizer's probe, or None if it is not followed."""
        probe = self._probes.get(id(optimizer))
        # An id may be used again once its optimizer is gone; a twin's probe refers to another optimizer.
        return probe if probe is not None and (probe.reference() is optimizer or self._explicit) else None

    def find(self, optimizer: Any) -> OptimizerProbe | None:
        """Return the probe of an optimizer that steps; None if it steps nothing that is watched."""
        probe = self._probes.get(id(optimizer))
        if probe is not None and probe.reference() is optimizer:
            return probe
        held = held_by(optimizer)
        if self._explicit:
            # A wrapper or the base of a watched optimizer (SAM) steps the same tensors under another identity.
            keys = {id(parameter) for parameter in held}
            twin = next((known for known in self.probes if known.owns(keys)), None)
            if twin is not None:
                self._probes[id(optimizer)] = twin
            return twin
        if self._roster.watches_any(held):
            self._probes.pop(id(optimizer), None)
            return self.add(optimizer, self.name_by(optimizer, self._names))
        return None

    def counters(self) -> dict[str, dict[str, int]]:
        """Return step and clip counters by optimizer name."""
        return {
            probe.name: {"step": probe.step, "clipped": probe.clip_count.clipped, "counted": probe.clip_count.steps}
            for probe in self.probes
        }

    def resume(self, counters: Mapping[str, Mapping[str, int]]) -> None:
        """Go on counting where `counters` left off; those of optimizers not seen yet wait for them."""
        self._resumed = {name: dict(entry) for name, entry in counters.items()}
        for probe in self.probes:
            self._resume(probe)

    def _resume(self, probe: OptimizerProbe) -> None:
        entry = self._resumed.pop(probe.name, None)
        if entry is not None:
            probe.step = int(entry["step"])
            probe.clip_count = ClipCount(int(entry["counted"]), int(entry["clipped"]))


def _default_name(_optimizer: Any, taken: Sequence[str]) -> str:
    return unique("optimizer", taken)
