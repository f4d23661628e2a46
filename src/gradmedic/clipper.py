"""Transforms without a monitor: for training loops that call them by hand."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gradmedic.checks import check_backend
from gradmedic.clip.admission import check_patterns
from gradmedic.clip.base import needs_of
from gradmedic.clip.chain import as_transform
from gradmedic.clip.spec import describe_tensors
from gradmedic.clip.withhold import FlaggedSkip
from gradmedic.errors import InputError, TrainingHalted
from gradmedic.frame import Frame
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.optimizer import OptimizerProbe, StepOptions
from gradmedic.probes.pending import resolve
from gradmedic.probes.rank_groups import RankGroups
from gradmedic.probes.treatment import Treatment
from gradmedic.roster import Roster
from gradmedic.settings import StoppedByGuard


class Clipper:
    """Measures, decides and clips once a step, where you call it: between `backward()` and `optimizer.step()`.

    The same transforms as in `gm.watch(..., transform=...)`, without hooks, record and diagnosis. A step that a guard
    skips is a true skip: its gradients are taken away (`.grad` is None), so that `optimizer.step()` passes it over;
    a fused optimizer, if it is given, is told by `found_inf`.

    Args:
        model_or_parameters: the module that is trained, or its parameters.
        transform: what to do, e.g. `gm.clip.zclip()`; a number stands for `gm.clip.norm(number)`.
        optimizer: the optimizer of these parameters; needed by transforms that read its second moment, and for skips
            without a host synchronisation on a device.
        backend: "auto", "native", "torch" or "reference": who measures. "torch" takes the path of a device: nothing is
            read back before the frame is asked for.
        groups: mapping pattern -> process group, as for `gm.watch`.

    Raises:
        InputError: a pattern matches nothing, the transform does not fit the optimizer, or there is nothing to train.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> clipper = gm.Clipper(model, gm.clip.norm(1.0))
        >>> model(torch.full((4, 2), 100.0)).sum().backward()
        >>> frame = clipper.step()
        >>> optimizer.step()
        >>> frame.clipped, round(frame.grad_norm_post, 3)
        (True, 1.0)
    """

    def __init__(
        self,
        model_or_parameters: nn.Module | Iterable[torch.Tensor],
        transform: Any,
        *,
        optimizer: Any = None,
        backend: str = "auto",
        groups: Mapping[str, Any] | None = None,
    ) -> None:
        self._backend = check_backend(backend)
        self._transform = as_transform(transform, "transform")
        self._model, self._listed = _given(model_or_parameters)
        self._roster = Roster.without_models() if self._model is None else Roster(self._model)
        self._reference = None if optimizer is None else weakref.ref(optimizer)
        holder = _Holder(self._parameters())
        if not any(parameter.requires_grad for parameter in self._parameters()):
            raise InputError("Clipper: none of the parameters requires a gradient; pass what you train")
        if "second_moment" in needs_of(self._transform) and optimizer is None:
            raise InputError(
                f"Clipper: {self._transform!r} reads the optimizer's second moment; pass optimizer=…, the "
                "one that steps these parameters"
            )
        self._holder = holder
        declared = None if groups is None else RankGroups(groups)
        reader = GradientReader(self._backend, declared)
        self._probe = OptimizerProbe(holder, "parameters", self._roster, reader, self._backend)
        self._treatment = Treatment(self._transform, self._roster, self._backend, reader.agreement)
        parameters = self._probe.parameters(holder)
        spec = describe_tensors(parameters, self._probe.names, self._roster.models)
        check_patterns(self._transform, spec)
        if declared is not None:
            declared.check(spec)
        self._treatment.prepare(self._probe, self._optimizer())
        self._hooks: list[Any] = []
        self._flagged: FlaggedSkip | None = None

    def _parameters(self) -> list[torch.Tensor]:
        return self._listed if self._model is None else list(self._model.parameters())

    def _optimizer(self) -> Any:
        known = None if self._reference is None else self._reference()
        return self._holder if known is None else known

    def step(self, loss: torch.Tensor | float | None = None) -> Frame:
        """Decide about the gradients as they are, and change them.

        Call it once for each optimizer step: after the last micro-batch, after `scaler.unscale_(optimizer)` under a
        GradScaler, and not where gradients are only accumulated.

        Args:
            loss: the step's loss, for guards that watch it; a number or a tensor of one element, on any device.

        Returns:
            What was measured and done. On a device the numbers are read back here, in one copy.

        Raises:
            TrainingHalted: a guard has ended the training; the gradients are as they were.
        """
        self._put_back()
        self._holder.take(self._parameters())
        known = _loss(loss)
        readings = self._probe.begin(self._holder, StepOptions(sample=False, direction=False))
        optimizer = self._optimizer()
        halt = self._treatment.apply(self._probe, optimizer, readings, loss=known)
        ends = halt is not None and not callable(halt.on_trip)
        pending = self._probe.finish(skipped=halt.text if halt is not None and ends else None)
        assert pending is not None
        self._treatment.describe(self._probe, pending)
        pending.loss = known
        self._settle_skip(optimizer, ends)
        frame = resolve([pending])[0]
        if halt is not None:
            if callable(halt.on_trip):
                halt.on_trip(halt.text)
            elif halt.on_trip == "stop":
                raise StoppedByGuard(halt.text)
            else:
                step = frame.step if halt.step is None else halt.step
                raise TrainingHalted(f"step {step}: {halt.text}; the step is not to be made")
        return frame

    def _settle_skip(self, optimizer: Any, ends: bool) -> None:
        """Leave the gradients taken away for the step that follows; a flag is set when that begins, and taken off."""
        withheld = self._treatment.hand_over(self._probe)
        if withheld is None:
            return
        if ends:
            withheld.put_back()
        elif isinstance(withheld, FlaggedSkip):
            # A GradScaler sets flags of its own just before the step and deletes them after it: ours joins them there.
            withheld.put_back()
            self._hooks = [
                optimizer.register_step_pre_hook(lambda stepping, *_: self._flag(stepping, withheld.flag)),
                optimizer.register_step_post_hook(lambda *_: self._put_back()),
            ]

    def _flag(self, optimizer: Any, flag: torch.Tensor) -> None:
        self._flagged = FlaggedSkip(optimizer, flag)

    def _put_back(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        flagged, self._flagged = self._flagged, None
        if flagged is not None:
            flagged.put_back()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: step counter and the transform's state, by tensor name."""
        counters = {"step": self._probe.step, "clipped": self._probe.clip_count.clipped}
        return {"version": 1, **counters, "transform": self._treatment.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another clipper stopped.

        Raises:
            InputError: this is not what `state_dict` returned, or it is another transform's state.
        """
        if not isinstance(state, Mapping) or state.get("version") != 1 or not {"transform", "step"} <= set(state):
            came = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
            raise InputError(f"state: expected what Clipper.state_dict() returned (version 1), got {came}")
        self._treatment.load_state_dict(state["transform"])
        self._probe.step = int(state["step"])
        self._probe.clip_count.steps = self._probe.step
        self._probe.clip_count.clipped = int(state["clipped"])


def _loss(loss: Any) -> torch.Tensor | None:
    if loss is None:
        return None
    try:
        value = torch.as_tensor(loss).detach()
    except (TypeError, ValueError, RuntimeError):
        value = torch.empty(0)
    if value.numel() != 1 or value.is_complex():
        raise InputError(f"loss: expected a number or a tensor of one element, got {loss!r}"[:300])
    return value.reshape(()).double()


class _Holder:
    """Stands for an optimizer where there is none: its parameters."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters}]
        self.state: dict[Any, Any] = {}
        self.defaults: dict[str, Any] = {}

    def take(self, parameters: list[torch.Tensor]) -> None:
        """Parameters may have come or gone."""
        self.param_groups[0]["params"] = parameters


def _given(given: Any) -> tuple[nn.Module | None, list[torch.Tensor]]:
    if isinstance(given, nn.Module):
        return given, []
    if isinstance(given, torch.Tensor):
        return None, [given]
    try:
        listed = list(given)
    except TypeError:
        listed = [given]
    if not listed or not all(isinstance(each, torch.Tensor) for each in listed):
        raise InputError(
            f"Clipper: expected a torch.nn.Module or its parameters, got {type(given).__name__}; the order is "
            "gm.Clipper(model, transform)"
        )
    return None, list({id(each): each for each in listed}.values())
