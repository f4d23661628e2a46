"""The boundary read: what one optimizer is about to do, and has done, at its step.

One `OptimizerProbe` follows one optimizer. `begin` is called when all of its gradients are there and `finish` when it
has stepped (or when its step was withheld); between them lies nothing but the optimizer. Parameters are looked up anew
each time, so that groups that grow, layers that thaw and weights that are replaced are seen; the optimizer is held
weakly.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gradmedic.clip.spec import describe_tensors
from gradmedic.frame import Frame
from gradmedic.holdings import held_by
from gradmedic.probes.freshness import Freshness
from gradmedic.probes.gradients import GradientReader, Reading
from gradmedic.probes.joint import join_totals
from gradmedic.probes.pending import ClipCount, PendingFrame
from gradmedic.probes.sampled_changes import SampledChanges, StepSample
from gradmedic.roster import Roster
from gradmedic.stats.joining import Joining, run_together
from gradmedic.stats.mesh_layout import any_distributed
from gradmedic.stats.parts import on_meta, readable_among
from gradmedic.stats.spans import Spans
from gradmedic.types import Backend


@dataclass(slots=True)
class StepOptions:
    """How a step is to be read.

    Attributes:
        full: the whole per-tensor table, weights and updates included; otherwise gradient norms only.
        keep: whether the table belongs to the record (it may also be held for the flight recorder only).
        sample: read weights before and after, and the gradient's direction.
        direction: read the gradient's coordinates for the next step's cosine.
        histogram: with log2 histograms.
        divide_by: loss scale still in the gradients.
        found_inf: fused optimizers' own skip flag.
    """

    full: bool = True
    keep: bool = True
    sample: bool = True
    direction: bool = True
    histogram: bool = False
    divide_by: torch.Tensor | None = None
    found_inf: torch.Tensor | None = None


class OptimizerProbe:
    """Follows one optimizer from step to step.

    Args:
        optimizer: a torch optimizer (anything with `param_groups`).
        name: what it is called in the record.
        roster: names of the parameters.
        reader: where clip calls leave their readings.
        backend: which statistics backend.

    Attributes:
        spread: whether any of its tensors lies on several ranks.
        spans: which of them go into totals together with tensors of other ranks; None: none.
    """

    def __init__(
        self, optimizer: Any, name: str, roster: Roster, reader: GradientReader, backend: Backend = "auto"
    ) -> None:
        self.name = name
        self.step = 0
        self.freshness = Freshness()
        self.clip_count = ClipCount()
        self.spread = any_distributed(held_by(optimizer))
        self.spans: Spans | None = None
        self.reference: weakref.ref[Any] = weakref.ref(optimizer)
        self._roster = roster
        self._reader = reader
        self._backend: Backend = backend
        self._key: tuple[tuple[int, bool], ...] = ()
        self._holders: list[weakref.ref[torch.Tensor]] = []
        self._by_size: list[int] = []
        self._names: tuple[str, ...] = ()
        self._changes = SampledChanges(reader.agreement, backend)
        self._last_end: float | None = None
        self._open: _OpenStep | None = None

    def parameters(self, optimizer: Any) -> list[torch.Tensor]:
        """Return the optimizer's trainable tensors, each once, and keep their names up to date."""
        held = held_by(optimizer)
        if self._same(held):
            return held
        unique: dict[int, torch.Tensor] = {}
        for parameter in held:
            if parameter.requires_grad and not is_lazy(parameter):
                unique[id(parameter)] = parameter
        found = list(unique.values())
        key = tuple((id(p), p.requires_grad) for p in found)
        same = key == self._key and all(r() is p for r, p in zip(self._holders, found, strict=True))
        if not same:
            self._rename(found)
            self._key = key
            self._holders = [weakref.ref(parameter) for parameter in found]
            self._by_size = sorted(range(len(found)), key=lambda at: found[at].numel())
        return found

    def _same(self, held: list[torch.Tensor]) -> bool:
        """Whether the optimizer holds what it held the last time, all of it trainable: the usual step."""
        known = self._holders
        with torch._C.DisableTorchFunctionSubclass():  # see `gradients_of`
            return len(held) == len(known) and all(
                [reference() is parameter and parameter.requires_grad for reference, parameter in zip(known, held)]  # noqa: B905
            )

    def _rename(self, found: list[torch.Tensor]) -> None:
        names: list[str] = []
        for position, entry in enumerate(self._roster.identify(found)):
            # Not in any watched model: still part of what the optimizer does.
            names.append(entry.name if entry is not None else f"{self.name}[{position}]")
        self._names = tuple(names)
        self.spread = any_distributed(found)
        if self._reader.groups is not None:
            spec = describe_tensors(found, self._names, self._roster.models)
            self.spans = self._reader.groups.spans(spec, found, self._reader.agreement)
        self._changes.forget()

    def begin(
        self, optimizer: Any, options: StepOptions, *, read: bool = True, updated: bool = False
    ) -> list[tuple[Reading, list[int]]]:
        """Read the gradients, and the weights before the step.

        Args:
            optimizer: the optimizer that is about to step.
            options: what to read.
            read: False when the gradients do not exist yet (a closure will make them); `read_again` follows.
            updated: the weights have changed already; they are compared with those after the last step, if known.

        Returns:
            The readings with the positions of their tensors; a transform may add its clipping to them.
        """
        parameters = self.parameters(optimizer)
        if self.spans is not None:
            self.spans.ask()
        hidden = on_meta(parameters)
        opened = _OpenStep(parameters, hidden, options, rates=learning_rates(optimizer))
        self._open = opened
        if options.sample and parameters and not hidden:
            opened.sample = self._changes.begin(parameters, self.step, keep=options.keep, updated=updated)
        return self.read_again() if read else []

    def read_again(self) -> list[tuple[Reading, list[int]]]:
        """Read the gradients of the open step, in place of what was read of them before."""
        opened = self._open
        if opened is None:
            return []
        opened.was_read = True
        parameters = opened.parameters
        present = readable_among(parameters)
        if len(present) < len(parameters) and self._reader.engines is not None:
            kept = self._reader.engines.hidden(parameters)
            opened.hidden = sorted({*opened.hidden, *kept})
        opened.readings = self._read(parameters, present, opened.options)
        self._suspect_weights(opened)
        if opened.sample is not None and opened.options.direction and present:
            self._changes.read_direction(opened.sample, parameters)
        return opened.readings

    def _read(
        self, parameters: list[torch.Tensor], present: list[int], options: StepOptions
    ) -> list[tuple[Reading, list[int]]]:
        chosen = [parameters[at] for at in present]
        if not chosen:
            return []
        taken = self._reader.take(chosen, full=options.full, histogram=options.histogram, divide_by=options.divide_by)
        if len(taken) == 1 and taken[0].keys == [id(parameter) for parameter in chosen]:
            return [(taken[0], present)]
        places = {id(parameters[at]): at for at in present}
        return [(reading, [places[key] for key in reading.keys]) for reading in taken]

    def _suspect_weights(self, opened: _OpenStep) -> None:
        """Measure the weights of a step whose gradients are not finite: they may be what is not. On the CPU only."""
        sample = opened.sample
        if sample is None or sample.weight_norms is not None or self._backend == "torch":
            return
        counts = [reading.nonfinite() for reading, _ in opened.readings]
        if any(count.device.type == "cpu" and int(count) for count in counts):
            self._changes.measure_weights(sample)

    def finish(self, *, skipped: str | None = None) -> PendingFrame | None:
        """Read the weights after the step and return the step's frame; None if `begin` was not called."""
        opened, self._open = self._open, None
        if opened is None:
            return None
        if not opened.was_read and skipped is None:  # a closure that was never called
            self._open = opened
            self.read_again()
            self._open = None
        now = time.time()
        frame = Frame(self.step, self.name, now, skipped=skipped is not None, skip_reason=skipped)
        frame.step_seconds = None if self._last_end is None else now - self._last_end
        frame.stale_grads = self.freshness.stale
        pending = PendingFrame(frame, self._names, opened.readings, self.clip_count)
        pending.hidden = opened.hidden
        if opened.hidden and not opened.readings and self._reader.engines is not None:
            pending.engine, pending.known_norm = self._reader.engines.name, self._reader.engines.norm()
        pending.found_inf = opened.options.found_inf
        pending.full = opened.options.full
        pending.keep = opened.options.keep
        self._join(opened, pending)
        frame.lrs = opened.rates
        frame.lr = opened.rates[0] if opened.rates else None
        self._reader.agreement.stepped()
        self.freshness.stepped(opened.parameters[at] for at in self._by_size)
        self.step += 1
        self._last_end = now
        return pending

    def _join(self, opened: _OpenStep, pending: PendingFrame) -> None:
        """Make all that was measured numbers of whole tensors, and put what the step has changed into its frame."""
        joinings: list[Joining[Any]] = [reading.joining() for reading, _ in opened.readings]
        if opened.sample is not None:
            joinings.append(self._changes.finish(opened.sample, opened.parameters, self.step, full=pending.full))
        results = run_together(joinings)
        if opened.sample is not None:
            everyone = list(range(len(opened.parameters)))
            pending.vectors.update({name: (values, everyone) for name, values in results[-1].items()})
        if self.spans is not None:
            pending.joint = join_totals(opened.readings, len(opened.parameters), self.spans)

    def abandon(self) -> None:
        """Forget a step that was begun and never finished (the optimizer raised)."""
        self._open = None

    @property
    def loss_scale(self) -> torch.Tensor | None:
        """What the gradients of the open step are still multiplied by; None: nothing, or no step is open."""
        return None if self._open is None else self._open.options.divide_by

    @property
    def is_open(self) -> bool:
        """Whether a step has begun and not finished."""
        return self._open is not None

    def by_size(self) -> Iterator[torch.Tensor]:
        """Yield the optimizer's tensors that are still alive, smallest first."""
        held = (self._holders[at]() for at in self._by_size)
        return (parameter for parameter in held if parameter is not None)

    def owns(self, keys: set[int]) -> bool:
        """Whether the optimizer has any of the tensors with these ids."""
        return any(key in keys for key, _ in self._key)

    @property
    def open_parameters(self) -> list[torch.Tensor]:
        """The tensors of the open step, as `parameters` returned them at its beginning; none: no step is open."""
        return [] if self._open is None else self._open.parameters

    @property
    def open_gradients(self) -> list[torch.Tensor]:
        """The gradients of the open step."""
        opened = self._open
        return [] if opened is None else [p.grad for p in opened.parameters if p.grad is not None]

    @property
    def keys(self) -> list[int]:
        """`id` of each of the optimizer's tensors, in the order of their names."""
        return [key for key, _ in self._key]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the optimizer's tensors, in the order of its parameters."""
        return self._names

    def weights_changed(self) -> bool:
        """Whether the weights differ from those at the beginning of the open step (reads the host; CPU loops only)."""
        opened = self._open
        return opened is not None and opened.sample is not None and self._changes.changed(opened.sample)


@dataclass(slots=True)
class _OpenStep:
    """A step between its beginning and its end."""

    parameters: list[torch.Tensor]
    hidden: list[int]
    options: StepOptions
    rates: tuple[float, ...] = ()
    readings: list[tuple[Reading, list[int]]] = field(default_factory=list)
    was_read: bool = False
    sample: StepSample | None = None


def learning_rates(optimizer: Any) -> tuple[float, ...]:
    """Return the learning rate of each parameter group; NaN for one that is a device tensor (never read back)."""
    rates: list[float] = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, torch.Tensor):
            rate = float(rate) if rate.device.type == "cpu" else float("nan")
        if isinstance(rate, (int, float)):  # anything else is an optimizer's own affair
            rates.append(float(rate))
    return tuple(rates)
