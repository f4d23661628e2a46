"""Clipping the gradient that flows back through modules' outputs, before it reaches what lies in front of them.

A hook on each output tensor, put there in the forward pass, returns the clipped gradient: module backward hooks would
replace the gradient of the inputs, and break activations that work in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from gradmedic.clip.apply import applied
from gradmedic.clip.matching import match
from gradmedic.clip.norm import NormClip, scale_to
from gradmedic.clip.operations import Limit
from gradmedic.clip.spec import ModuleSpec, Spec, TensorSpec, kinds_of
from gradmedic.clip.thresholds.base import Constant, check_threshold
from gradmedic.clip.value import ValueClip
from gradmedic.errors import InputError
from gradmedic.names import walk_modules
from gradmedic.probes.leaves import tensor_leaves
from gradmedic.torch_hooks import hook_outputs, passive

Report = Callable[[str, Exception], None]


class FlowClip:
    """Clips gradients at the outputs of some modules, and remembers by how much since the last step.

    Args:
        limits: module name -> what to do there.
        models: prefix -> model.
        loss_scale: returns what gradients are multiplied by now, 0-d, or None.
        failed: called with the part's name and an exception of ours; the gradient then stays as it is.
    """

    def __init__(
        self,
        limits: Mapping[str, NormClip | ValueClip],
        models: Mapping[str, nn.Module],
        loss_scale: Callable[[], torch.Tensor | None],
        failed: Report,
    ) -> None:
        self._limits = dict(limits)
        self._loss_scale = loss_scale
        self._failed = failed
        self._factors: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._removers: list[Callable[[], None]] = []
        modules: dict[str, nn.Module] = {}
        for prefix, model in models.items():
            for name, module in walk_modules(model, prefix):
                modules.setdefault(name, module)  # of a wrapper and what it wraps, the wrapper
        for name in self._limits:
            self._removers.append(hook_outputs(modules[name], self._placer(name)))

    def describe(self) -> dict[str, str]:
        """Return module name -> what is done there, for the record."""
        return {name: repr(limit) for name, limit in self._limits.items()}

    def remove(self) -> None:
        """Take all hooks off."""
        while self._removers:
            self._removers.pop()()

    def take(self) -> dict[str, torch.Tensor]:
        """Return the smallest factor at each module since the last call, 0-d, on its device; by name for the record."""
        with self._lock:
            taken, self._factors = self._factors, {}
        return {f"flow.{name}": factor for name, factor in taken.items()}

    def _placer(self, name: str) -> Callable[[Any], None]:
        limit = self._limits[name]

        def place(output: Any) -> None:
            if not torch.is_grad_enabled() or passive():
                return
            try:
                tensors = list(tensor_leaves(output))
            except Exception as error:  # outputs of any kind may come
                self._failed("flow", error)
                return
            for tensor in tensors:
                # A leaf (a parameter that is handed on) keeps its hooks from step to step: never put one there.
                if tensor.grad_fn is not None and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    tensor.register_hook(lambda g: self._clip(name, limit, g))  # type: ignore[no-untyped-call]

        return place

    def _clip(self, name: str, limit: NormClip | ValueClip, gradient: torch.Tensor) -> torch.Tensor | None:
        try:
            with torch.no_grad():
                clipped, factor = clip_flow(gradient, limit, self._loss_scale())
        except Exception as error:
            self._failed("flow", error)
            return None
        if not gradient.requires_grad:
            with self._lock:
                former = self._factors.get(name)
                self._factors[name] = factor if former is None else torch.minimum(former, factor.to(former.device))
            return clipped
        return None if clipped is gradient else gradient * (clipped / gradient).nan_to_num(1.0).detach()


def clip_flow(
    gradient: torch.Tensor, limit: NormClip | ValueClip, loss_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped gradient, and by which factor its norm was changed.

    Args:
        gradient: of one output tensor; it is not changed.
        limit: a constant limit on its norm or on its elements, in true units.
        loss_scale: what the gradient is multiplied by, 0-d; None: nothing.

    Returns:
        The gradient, of its own type; NaN or infinite elements stay what they are, and then nothing is scaled. The
        factor, 0-d float64. No host synchronisation.
    """
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    if isinstance(limit, ValueClip):
        clipped = applied(Limit({0: limit.limit}), 0, gradient, loss_scale)
        before, after = (torch.linalg.vector_norm(each, dtype=wide).double() for each in (gradient, clipped))
        return clipped, torch.where(before > 0, after / before, torch.ones_like(before)).nan_to_num(1.0)
    norm = torch.linalg.vector_norm(gradient, limit.norm_type, dtype=wide).double()
    if loss_scale is not None:
        norm = norm / loss_scale.to(norm.device, torch.float64)
    factor = scale_to(limit.threshold.number, norm, (~torch.isfinite(norm)).long())
    real = torch.float64 if gradient.dtype in (torch.float64, torch.complex128) else torch.float32
    scaled = (gradient * factor.to(real)).to(gradient.dtype)
    return torch.where(factor == 1, gradient, scaled), factor


def check_flow(flow: Any, models: Mapping[str, nn.Module]) -> dict[str, NormClip | ValueClip]:
    """Return module name -> what to do at its outputs.

    Args:
        flow: mapping pattern -> a number (largest norm), `clip.norm(number)` or `clip.value(number)`.
        models: prefix -> model.

    Raises:
        InputError: it is no such mapping, a pattern matches no module, or a module is inside a compiled one.
    """
    if not isinstance(flow, Mapping):
        raise InputError(f'flow: expected a mapping such as {{"encoder.layers.*": 1.0}}, got {flow!r}')
    spec, inside = _modules_as_spec(models)
    limits: dict[str, tuple[tuple[int, int], NormClip | ValueClip]] = {}
    for pattern, given in flow.items():
        limit = _limit_of(pattern, given)
        found = match(str(pattern), spec)
        names = [spec.tensors[at].name for group in found.groups for at in group]
        if not names:
            known = [tensor.name for tensor in spec.tensors if tensor.name]
            listed = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
            raise InputError(f"flow: the pattern {pattern!r} matches no module; there are: {listed or '(none)'}")
        for name in names:
            if name not in limits or found.rank > limits[name][0]:
                limits[name] = (found.rank, limit)
    hidden = sorted(set(limits) & inside)
    if hidden:
        raise InputError(
            f"flow: {hidden[0]} is inside a compiled module, whose graph runs without hooks; clip at the compiled "
            "module itself, or compile without it"
        )
    return {name: limit for name, (_, limit) in limits.items()}


def _limit_of(pattern: Any, given: Any) -> NormClip | ValueClip:
    where = f"flow[{pattern!r}]"
    if isinstance(given, ValueClip):
        return given
    if isinstance(given, NormClip):
        if given.per == "model" and isinstance(given.threshold, Constant):
            return given
        raise InputError(f"{where}: expected a constant limit such as 1.0 or gm.clip.value(0.1), got {given!r}")
    if hasattr(given, "init"):
        raise InputError(f"{where}: expected a number, gm.clip.norm(number) or gm.clip.value(number), got {given!r}")
    return NormClip(Constant(check_threshold(given, where)))


def _modules_as_spec(models: Mapping[str, nn.Module]) -> tuple[Spec, set[str]]:
    """Return every module as something that patterns match by name or kind, and who is inside a compiled one."""
    entries: dict[str, TensorSpec] = {}
    inside: set[str] = set()
    compiled: set[str] = set()
    for prefix, model in models.items():
        for name, module in walk_modules(model, prefix):
            if type(module).__name__ == "OptimizedModule":
                compiled.add(name)
            elif any(name != root and (not root or name.startswith(f"{root}.")) for root in compiled):
                inside.add(name)
            if name not in entries:
                entries[name] = TensorSpec(name, modules=(ModuleSpec(name, kinds_of(module)),))
    return Spec(tuple(entries.values())), inside
