"""Probes of modules: their outputs, and the gradients that flow back into these, on sampled steps only.

Hooks are put on when a sampled step is about to begin and taken off when it has ended. The gradient of an output comes
from a hook on the output tensor, which lives no longer than the graph: module backward hooks break activations that
work in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from gradmedic.names import walk_modules
from gradmedic.probes.leaves import tensor_leaves
from gradmedic.probes.module_stats import (
    RECTIFIERS,
    ModuleSample,
    active_units,
    all_active,
    measurable,
    measure_output,
    measured,
    unit_axis,
)
from gradmedic.probes.preflight import compiled_graphs, takes_hooks
from gradmedic.probes.replicas import note_wrapper
from gradmedic.roster import Roster
from gradmedic.torch_hooks import hook_outputs, passive
from gradmedic.types import COUNT_COLUMNS, Backend

#: Of a model with more modules than this, "auto" probes an even choice.
MAX_MODULES = 400
_MAX_CALLS = 4
_ZEROS = COUNT_COLUMNS.index("zero_count")
_MAX_LEAVES = 4
_DULL = frozenset(
    {"Identity", "Flatten", "Unflatten", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"}
)

Patterns = str | list[str] | None


@dataclass(slots=True)
class _Units:
    """Which units were ever active, over all sampled batches; None once all of them were."""

    size: int
    device: torch.device
    ever: torch.Tensor | None
    batches: int = 1

    def add(self, active: torch.Tensor | None) -> None:
        """Take another batch; None where all units are active."""
        self.ever = None if self.ever is None or active is None else self.ever | active
        self.batches += 1

    @property
    def inactive(self) -> torch.Tensor | float:
        """How many units never were."""
        return 0.0 if self.ever is None else (~self.ever).double().sum()


@dataclass(slots=True)
class _Calls:
    """How often a module was called in this step, and what was measured."""

    count: int = 0
    samples: list[ModuleSample] = field(default_factory=list)


class ModuleProbe:
    """Measures modules on the steps for which it is armed.

    Args:
        roster: the models.
        patterns: "auto" for all modules without children (and attention), patterns over names, or None for none.
        backend: statistics backend.
        failed: is told of a fault of ours; the probe is then off.
    """

    def __init__(
        self, roster: Roster, patterns: Patterns, backend: Backend, failed: Callable[[str, Exception], None]
    ) -> None:
        self.off = patterns is None
        self._roster = roster
        self._patterns = patterns
        self._backend: Backend = backend
        self._failed = failed
        self._removers: list[Callable[[], None]] = []
        self._calls: dict[str, _Calls] = {}
        self._units: dict[tuple[str, str, str], _Units] = {}
        self._lock = threading.Lock()
        self._compiled = 0

    @property
    def armed(self) -> bool:
        """Whether hooks are on."""
        return bool(self._removers)

    def arm(self) -> None:
        """Put the hooks on, for the step that begins."""
        if self.off or self._removers:
            return
        self._compiled = compiled_graphs()
        for name, module in self.chosen():
            self._removers.append(hook_outputs(module, self._on_output(name, type(module).__name__)))

    def disarm(self, *, close: bool = False) -> None:
        """Take them off.

        A compiled graph guards on the hooks of the modules that it has traced: taking them off, or putting others on,
        would compile it anew. Where something was compiled meanwhile they stay, doing nothing, until watching ends.
        """
        if not close and self._removers and compiled_graphs() != self._compiled:
            self.off = True
            return
        while self._removers:
            self._removers.pop()()

    def take(self) -> list[ModuleSample]:
        """Return what was measured since the last call, in the order of first calls."""
        with self._lock:
            calls, self._calls = self._calls, {}
        return [sample for each in calls.values() for sample in each.samples]

    def chosen(self) -> list[tuple[str, nn.Module]]:
        """Return the modules to be probed, by name; none inside a compiled one, whose graph hooks would change."""
        found: dict[str, nn.Module] = {}
        for prefix, model in self._roster.models.items():
            if any(_is_compiled(module) for module in model.modules()):
                continue
            inside = ((name, module) for name, module in walk_modules(model, prefix) if takes_hooks(module))
            found.update((name, module) for name, module in inside if self._wants(name, module))
        listed = list(found.items())
        stride = -(-len(listed) // MAX_MODULES) if self._patterns == "auto" else 1
        return listed[:: max(1, stride)]

    def _wants(self, name: str, module: nn.Module) -> bool:
        if isinstance(self._patterns, list):
            return any(fnmatchcase(name, pattern) for pattern in self._patterns)
        kind = type(module).__name__
        if kind in _DULL:
            return False
        return not module._modules or "attention" in kind.lower()

    def _on_output(self, name: str, kind: str) -> Callable[[Any], None]:
        def on_output(output: Any) -> None:
            if self.off or not torch.is_grad_enabled() or passive() or torch._C._get_tracing_state() is not None:
                return
            try:
                note_wrapper()
                self._measure(name, kind, output)
            except Exception as error:
                self._fail(error)

        return on_output

    def _fail(self, error: Exception) -> None:
        self.off = True
        self._failed("modules", error)

    def _measure(self, name: str, kind: str, output: Any) -> None:
        with self._lock:
            calls = self._calls.setdefault(name, _Calls())
            call, calls.count = calls.count, calls.count + 1
        if call >= _MAX_CALLS:
            return
        leaves = [tensor for tensor in tensor_leaves(output) if measurable(tensor)][:_MAX_LEAVES]
        for place, tensor in enumerate(leaves):
            leaf = str(place)
            sample = measure_output(name, kind, tensor, self._backend)
            sample.call, sample.leaf = call, leaf
            if kind in RECTIFIERS:
                self._count_units(sample, kind, tensor)
            calls.samples.append(sample)
            if tensor.grad_fn is not None:
                tensor.register_hook(self._on_gradient(name, kind, call, leaf))  # type: ignore[no-untyped-call]

    def _on_gradient(self, name: str, kind: str, call: int, leaf: str) -> Callable[[torch.Tensor], None]:
        def on_gradient(gradient: torch.Tensor) -> None:
            if self.off or not measurable(gradient):
                return
            try:
                sample = measured(name, "grad_output", gradient, self._backend)
                sample.call, sample.leaf = call, leaf
                with torch.no_grad():
                    self._count_units(sample, kind, gradient)
                with self._lock:
                    self._calls.setdefault(name, _Calls()).samples.append(sample)
            except Exception as error:
                self._fail(error)

        return on_gradient

    def _known_zeros(self, sample: ModuleSample) -> int | None:
        """Return how many zeros were counted, where to know it holds nobody up."""
        if sample.known is not None:
            return sample.known[1][_ZEROS]
        counts = None if sample.table is None or self._backend == "torch" else sample.table.counts
        return None if counts is None or counts.device.type != "cpu" else int(counts[_ZEROS])

    def _count_units(self, sample: ModuleSample, kind: str, tensor: torch.Tensor) -> None:
        axis = unit_axis(kind, tensor.dim())
        if axis is None:
            return
        size, zeros = tensor.shape[axis], self._known_zeros(sample)
        active = None if all_active(tensor, size, zeros) else active_units(kind, tensor, zeros)
        key = (sample.module, sample.what, sample.leaf)
        with self._lock:
            known = self._units.get(key)
            if known is None or (known.size, known.device) != (size, tensor.device):
                known = self._units[key] = _Units(size, tensor.device, active)
            else:
                known.add(active)
        sample.numbers["units"] = float(size)
        sample.numbers["inactive_units"] = known.inactive
        sample.numbers["batches"] = float(known.batches)


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
