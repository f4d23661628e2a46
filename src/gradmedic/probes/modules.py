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
from gradmedic.probes.module_stats import RECTIFIERS, ModuleSample, active_units, measurable, measure_output
from gradmedic.probes.preflight import compiled_graphs, takes_hooks
from gradmedic.probes.replicas import note_wrapper
from gradmedic.roster import Roster
from gradmedic.stats import gradient_stats
from gradmedic.torch_hooks import hook_outputs, passive
from gradmedic.types import COUNT_COLUMNS, Backend

#: Of a model with more modules than this, "auto" probes an even choice.
MAX_MODULES = 400
_MAX_CALLS = 4
_MAX_LEAVES = 4
_DULL = frozenset(
    {"Identity", "Flatten", "Unflatten", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"}
)

Patterns = str | list[str] | None


@dataclass(slots=True)
class _Units:
    """Which units were ever active, over all sampled batches."""

    ever: torch.Tensor
    batches: int = 1


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
                with torch.no_grad():
                    table = gradient_stats([gradient.detach()], backend=self._backend)
                    sample = ModuleSample(name, "grad_output", call, leaf, table)
                    self._count_units(sample, kind, gradient)
                with self._lock:
                    self._calls.setdefault(name, _Calls()).samples.append(sample)
            except Exception as error:
                self._fail(error)

        return on_gradient

    def _known_zeros(self, sample: ModuleSample) -> int | None:
        """Return how many zeros were counted, where to know it holds nobody up."""
        counts = None if sample.table is None or self._backend == "torch" else sample.table.counts
        return None if counts is None or counts.device.type != "cpu" else int(counts[COUNT_COLUMNS.index("zero_count")])

    def _count_units(self, sample: ModuleSample, kind: str, tensor: torch.Tensor) -> None:
        active = active_units(kind, tensor, self._known_zeros(sample))
        if active is None:
            return
        key = (sample.module, sample.what, sample.leaf)
        with self._lock:
            known = self._units.get(key)
            if known is None or known.ever.shape != active.shape or known.ever.device != active.device:
                known = self._units[key] = _Units(active)
            else:
                known.ever = known.ever | active
                known.batches += 1
        sample.numbers["units"] = float(active.numel())
        sample.numbers["inactive_units"] = (~known.ever).double().sum()
        sample.numbers["batches"] = float(known.batches)


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
