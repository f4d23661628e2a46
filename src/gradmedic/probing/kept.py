"""Probes of an unmodified script: its own batch is kept, and its own loss computed again.

From the second step on a model's inputs and its output are kept until the backward pass begins, and the inputs and the
targets until the next one. The probes run right after the second step, and once more, with the last batch, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradmedic import torch_hooks
from gradmedic.isolation import Isolation, part
from gradmedic.muting import is_muted
from gradmedic.probes.loss_graph import find_losses
from gradmedic.probing.recipe import Recipe, recipe_of, target_of
from gradmedic.probing.result import ProbeResult

if TYPE_CHECKING:
    from gradmedic.monitor import Monitor

FIRST: tuple[str, ...] = ("line", "batch", "input", "future")
LAST: tuple[str, ...] = ("line", "input", "overfit")
_MAX_ATTEMPTS = 8
_ADVICE = "monitor.probe(lambda x, y: loss, x, y) in the loop"


@dataclass(slots=True)
class _Kept:
    """The last call of the model that a loss was computed of."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool
    versions: tuple[int, ...] = ()
    output: Any = None
    target: torch.Tensor | None = None
    tensors: list[torch.Tensor] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether a tensor has been written to since."""
        return tuple(each._version for each in self.tensors) != self.versions


class StepProbe(torch_hooks.Listener):
    """Feeds probes with what a script trains on.

    Args:
        monitor: watches the script; it must be closed after `finish`.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.isolation: Isolation = monitor.isolation
        self._monitor = monitor
        self._removers: list[Callable[[], None]] = []
        self._hooked: set[int] = set()
        self._kept: _Kept | None = None
        self._recipe: Recipe | None = None
        self._reason = "a second step"
        self._done = self._made = False
        self._attempts = 0

    def start(self) -> None:
        """Begin to listen."""
        torch_hooks.attach(self)

    def failed(self, part: str, error: Exception) -> None:
        """A callback failed outside any part of its own."""
        self.isolation.failed(part, error)

    @part("step probe")
    def before_backward(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """A loss has been computed: of which output, against which targets?"""
        kept = self._kept
        if kept is None or kept.output is None or is_muted():
            return
        output, kept.output = kept.output, None
        calls = find_losses(roots)
        if len(calls) != 1 or len(roots) != 1:
            self._reason = f"a step with one known loss, not {len(calls)}; or {_ADVICE}"
            self._kept = None
        elif self._recipe is None:
            self._attempts += 1
            if self._attempts <= _MAX_ATTEMPTS:
                self._learn(kept, calls[0], output, roots[0])
        else:
            target = target_of(calls[0])
            shape = self._recipe.shape
            if target is not None and shape is not None:
                kept.target = target.reshape(-1, *shape[1:])

    def _learn(self, kept: _Kept, call: Any, output: Any, root: torch.Tensor) -> None:
        samples = kept.tensors[0].shape[0] if kept.tensors and kept.tensors[0].dim() else 0
        found = recipe_of(call, output, root, samples) if samples else None
        if found is None:
            self._reason = f"a loss that follows from the model's output in one of the usual ways; or {_ADVICE}"
            self._kept = None
        else:
            self._recipe, kept.target = found

    @part("step probe")
    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step was made; hooks are put on models as they are found."""
        if is_muted():
            return
        if self._recipe is not None and not self._done:
            self._done = True
            self._probe(FIRST)
        for model in self._monitor._watcher.models.values():
            if id(model) not in self._hooked:
                self._hooked.add(id(model))
                self._removers.append(torch_hooks.hook_inputs(model, self._on_input))
                self._removers.append(torch_hooks.hook_outputs(model, self._on_output))

    @part("step probe")
    def finish(self) -> None:
        """The script has ended: probe with its last batch, or say what was missing."""
        self.stop()
        if self._recipe is not None:
            self._probe(LAST)
        if not self._made:
            self._monitor._keep_probes([ProbeResult("all", "needs", reason=self._reason).to_event(0, "")])
        self._kept = None

    def stop(self) -> None:
        """Listen no more."""
        torch_hooks.detach(self)
        while self._removers:
            self._removers.pop()()

    @part("step probe")
    def _on_input(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not torch.is_grad_enabled() or torch._C._get_tracing_state() is not None:
            return
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if not tensors or any(each.requires_grad or each.is_meta for each in tensors):
            return  # another model's output: its own inputs are not here
        versions = tuple(each._version for each in tensors)
        self._kept = _Kept(model, tuple(args), dict(kwargs), model.training, versions, tensors=tensors)

    @part("step probe")
    def _on_output(self, output: Any) -> None:
        if self._kept is not None and torch.is_grad_enabled():
            self._kept.output = output

    def _probe(self, only: Sequence[str]) -> None:
        kept, recipe = self._kept, self._recipe
        if kept is None or kept.target is None or recipe is None or kept.changed:
            self._reason = f"a batch that is not written to after its step; or {_ADVICE}"
            return
        target = kept.target

        def loss_of(*batch: torch.Tensor) -> torch.Tensor:
            kept.model.train(kept.training)
            assert recipe is not None
            return recipe.loss(_call(kept, batch[:-1]), batch[-1])

        self._monitor.probe(loss_of, *kept.tensors, target, only=only)
        self._made = True


def _call(kept: _Kept, given: Sequence[torch.Tensor]) -> Any:
    """Call the model as it was called, with other tensors in the place of those that were kept."""
    rest = iter(given)
    args = [next(rest) if isinstance(each, torch.Tensor) else each for each in kept.args]
    kwargs = {key: next(rest) if isinstance(each, torch.Tensor) else each for key, each in kept.kwargs.items()}
    return kept.model(*args, **kwargs)
