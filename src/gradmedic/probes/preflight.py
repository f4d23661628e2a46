"""The first steps' look at the wiring: what the loss reaches, who owns what, what the model is fed.

The graph of the first backward calls is walked once each. Only where a trainable parameter is not reached are hooks put
on modules, and only on those that hold such a parameter, to tell *called but cut off* from *never called*; they are
gone after the first steps. A healthy run never has one.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradmedic.facts import Facts, ParameterFact
from gradmedic.names import walk_modules
from gradmedic.probes.graph import computes_in, walk
from gradmedic.probes.inputs import InputFacts, InputSample, sample_inputs
from gradmedic.roster import Roster
from gradmedic.torch_hooks import hook_calls, hook_inputs

STEPS = 3
_MAX_STEPS = 12
_MAX_WALKS = 24
_MAX_INPUTS = 24


class Preflight:
    """Collects the facts of a run's first steps.

    Args:
        roster: the watched models.
        failed: is told of a fault inside a module hook, which must not reach the host's forward pass.
    """

    def __init__(self, roster: Roster, failed: Callable[[str, Exception], None]) -> None:
        self.facts = Facts()
        self.over = False
        self._roster = roster
        self._failed = failed
        self._inputs_off = False
        self._may_look = True
        self._removers: list[Callable[[], None]] = []
        self._looked_at: set[str] = set()
        self._hooked_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._samples: list[InputSample] = []
        self.inputs = InputFacts()
        self._reached: set[str] = set()
        self._order: dict[str, int] = {}
        self._called: set[str] = set()
        self._owned: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, int]]] = {}
        self._step = 0
        self._compiled = compiled_graphs()

    def watch_inputs(self) -> None:
        """Look at what the models are given, from their next forward call on."""
        for model in self._roster.models.values():
            if model not in self._hooked_models and takes_hooks(model):
                self._hooked_models.add(model)
                self._removers.append(hook_inputs(model, self._on_input))

    def _on_input(self, _module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        full = self._inputs_off or len(self._samples) >= _MAX_INPUTS
        if self.over or full or torch._C._get_tracing_state() is not None:
            return
        try:
            self._samples.extend(sample_inputs(args, kwargs, self._step))
        except Exception as error:  # inputs of any kind may come
            self._inputs_off = True
            self._samples.clear()
            self._failed("inputs", error)

    def on_backward(self, roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Walk the graph that is about to be used; returns the leaves that it reaches."""
        if self.over or self.facts.steps_walked >= _MAX_WALKS:
            return []
        graph = walk(roots)
        self.facts.steps_walked += 1
        self.facts.float16 = self.facts.float16 or computes_in(graph, torch.float16)
        names = [found[0] for leaf in graph.order if (found := self._roster.name_of(leaf)) is not None]
        for place, name in enumerate(names):
            self._order.setdefault(name, place)
        self._reached.update(names)
        return graph.order

    def note_reached(self, leaves: Iterable[torch.Tensor]) -> None:
        """Name leaves of an earlier walk, once their models have been found."""
        named = [found[0] for leaf in leaves if (found := self._roster.name_of(leaf)) is not None]
        for place, name in enumerate(named):
            self._order.setdefault(name, place)
        self._reached.update(named)

    def look_at_unreached(self) -> None:
        """Put a hook on each module that holds a trainable parameter which no loss has reached so far."""
        wanted = {
            entry.module
            for entry in self._roster.parameters
            if entry.name not in self._reached and (p := entry.reference()) is not None and p.requires_grad
        } - self._looked_at
        if not wanted or not self.facts.steps_walked:
            return
        for prefix, model in self._roster.models.items():
            if _is_compiled(model):
                continue
            for name, module in walk_modules(model, prefix):
                if name in wanted and takes_hooks(module):
                    self._looked_at.add(name)
                    self._removers.append(hook_calls(module, self._note_call(name)))

    def _note_call(self, name: str) -> Callable[..., None]:
        called = self._called
        return lambda _module, *_rest: called.add(name)

    def stepped(self, slowest: int, fastest: int) -> None:
        """Steps were made; the look is over after the first ones of every optimizer, or many of one.

        Args:
            slowest, fastest: steps made by the optimizer that has made the fewest, and the most.
        """
        self._step = fastest
        if slowest >= STEPS or fastest >= _MAX_STEPS:
            self.end()

    def end(self, *, close: bool = False) -> None:
        """Look no more, and take every hook off.

        A compiled graph guards on the number of hooks of the modules it has traced: taking one off would compile it
        anew. Where something has been compiled since, the hooks stay, doing nothing, until the watching itself ends.
        """
        self.over = True
        if close or compiled_graphs() == self._compiled:
            while self._removers:
                self._removers.pop()()

    def collect(
        self,
        owners: dict[int, tuple[str, int]],
        stale: list[dict[str, Any]],
        *,
        may_wait: bool = True,
        may_look: bool = True,
    ) -> Facts:
        """Bring the facts up to date.

        Args:
            owners: id(parameter) -> the optimizer that has it, and the place of its parameter group there.
            stale: what optimizers hold that no watched model has.
            may_wait: whether input statistics may be waited for, where they lie on a device.
            may_look: whether no other thread can be writing gradients now.
        """
        self._may_look = may_look
        self.inputs.send(self._samples)
        self._samples.clear()
        self.facts.inputs.extend(self.inputs.arrived(wait=may_wait))
        self.facts.stale = stale
        self._owned = {key: entry for key, entry in self._owned.items() if entry[0]() is not None}
        self.facts.parameters = {
            entry.name: self._parameter(entry, parameter, owners)
            for entry in self._roster.parameters
            if (parameter := entry.reference()) is not None and not is_lazy(parameter)
        }
        return self.facts

    def _parameter(self, entry: Any, parameter: torch.Tensor, owners: dict[int, tuple[str, int]]) -> ParameterFact:
        walked = self.facts.steps_walked > 0
        looked = entry.module in self._looked_at
        old = self.facts.parameters.get(entry.name)
        owner, group = self._owner(parameter, owners)
        received = old is not None and bool(old.received)
        received = received or (self._may_look and parameter.grad is not None)
        return ParameterFact(
            name=entry.name,
            module=entry.module,
            kind=entry.kind,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            numel=parameter.numel(),
            trainable=parameter.requires_grad,
            optimizer=owner,
            group=group,
            aliases=tuple(entry.aliases),
            reached=(entry.name in self._reached) if walked else None,
            called=(entry.module in self._called) if looked else None,
            order=self._order.get(entry.name),
            received=received if walked or received else None,
        )

    def _owner(self, parameter: torch.Tensor, owners: dict[int, tuple[str, int]]) -> tuple[str | None, int | None]:
        """Return the optimizer that has a parameter, or that had it until it was itself let go, and the group there.

        A script that trains in phases makes a new optimizer for each; the head of the first phase was trained.
        """
        key = id(parameter)
        if key in owners:
            self._owned[key] = weakref.ref(parameter), owners[key]
        entry = self._owned.get(key)
        return entry[1] if entry is not None and entry[0]() is parameter else (None, None)


def takes_hooks(module: nn.Module) -> bool:
    """Whether a module can have hooks: those that TorchScript has compiled cannot."""
    return not isinstance(module, torch.jit.ScriptModule)


def _is_compiled(model: nn.Module) -> bool:
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has captured in this process; 0 where it was never used."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    stats = counters.get("stats", {})
    return int(stats.get("unique_graphs", 0))
