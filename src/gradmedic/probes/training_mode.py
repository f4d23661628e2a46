"""For how many steps a model has been trained in evaluation mode, without any hook.

Reading one attribute per model at each backward pass tells exactly when a mode was left on; the modules themselves are
looked through only when there is something to say.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradmedic.names import walk_modules
from gradmedic.probes.graph import GraphWalk, walked_once
from gradmedic.probes.module_stats import ModuleSample

#: Rows are made also when a model has been in evaluation mode for so many steps in a row.
REPORT_AT = (3, 10)
#: Modules that are named.
MAX_NAMED = 32

_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd


@dataclass(slots=True)
class _Mode:
    """What one model was in, step by step."""

    evaluating: int = 0
    trained: int = 0
    training_now: bool = False


@dataclass(slots=True)
class ModeProbe:
    """Follows `model.training` over the backward passes.

    Args:
        models: returns the watched models by prefix.
        failed: is told of a fault of ours; the probe is then off.
    """

    models: Callable[[], Mapping[str, nn.Module]]
    failed: Callable[[str, Exception], None]
    off: bool = False
    _modes: weakref.WeakKeyDictionary[nn.Module, _Mode] = field(default_factory=weakref.WeakKeyDictionary)
    _passed: bool = False

    def before_backward(
        self, roots: Sequence[torch.Tensor], walked: Callable[[], GraphWalk] | None = None, *, sampled: bool
    ) -> list[ModuleSample]:
        """Look at the mode of each model; called for each backward pass.

        A step counts as one in evaluation mode only where no pass of it was in training mode: adversarial examples are
        made in evaluation mode, within steps of training.

        Args:
            roots: the tensors on which `backward` is about to be called.
            walked: returns what a walk from them finds; None to have it walked here.
            sampled: whether this pass's graph is looked at anyway.

        Returns:
            Rows of `what` "mode", with `leaf` "model": "training", "eval_steps" (steps in a row, this one included),
            "train_steps" (steps in training mode so far), "norms", "norms_eval" (batch normalisations, and those in
            evaluation mode whose scale is not frozen), "dropouts", "dropouts_eval" (those with p > 0), and "virgin"
            (whether the running statistics of all of `norms_eval` are as they were made); and one for each such module
            in evaluation mode, with `leaf` "norm" or "dropout". Only of models that have a parameter which this pass
            reaches, and that have a module of either kind. Values stay on the device.
        """
        if self.off:
            return []
        try:
            return self._look(walked or walked_once(roots), sampled)
        except Exception as error:
            self.off = True
            self.failed("mode", error)
            return []

    def end_step(self) -> None:
        """A step has ended."""
        if not self._passed:
            return
        self._passed = False
        for mode in self._modes.values():
            if mode.training_now:
                mode.trained += 1
                mode.evaluating = 0
            else:
                mode.evaluating += 1
            mode.training_now = False

    def _look(self, walked: Callable[[], GraphWalk], sampled: bool) -> list[ModuleSample]:
        self._passed = True
        rows: list[ModuleSample] = []
        reached: set[int] | None = None
        for prefix, model in self.models().items():
            mode = self._modes.get(model)
            if mode is None:
                mode = self._modes[model] = _Mode()
            mode.training_now = mode.training_now or model.training
            if not sampled and (model.training or mode.evaluating + 1 not in REPORT_AT):
                continue
            reached = {id(leaf) for leaf in walked().order} if reached is None else reached
            if any(id(parameter) in reached for parameter in model.parameters()):
                rows += _rows(prefix, model, mode)
        return rows


def _rows(prefix: str, model: nn.Module, mode: _Mode) -> list[ModuleSample]:
    norms = [(name, each) for name, each in walk_modules(model, prefix) if isinstance(each, _NORMS)]
    dropouts = [
        (name, each) for name, each in walk_modules(model, prefix) if isinstance(each, _DROPOUTS) and each.p > 0
    ]
    if not norms and not dropouts:
        return []
    idle = [(name, each) for name, each in norms if not each.training and _trains(each)]
    without = [(name, each) for name, each in dropouts if not each.training]
    row = ModuleSample(prefix, "mode", leaf="model")
    row.extra = {
        "training": float(model.training),
        "eval_steps": 0.0 if model.training else float(mode.evaluating + 1),
        "train_steps": float(mode.trained),
        "norms": float(len(norms)),
        "norms_eval": float(len(idle)),
        "dropouts": float(len(dropouts)),
        "dropouts_eval": float(len(without)),
        "virgin": _virgin([each for _, each in idle]),
    }
    named = [ModuleSample(name, "mode", leaf="norm") for name, _ in idle[:MAX_NAMED]]
    return [row, *named, *(ModuleSample(name, "mode", leaf="dropout") for name, _ in without[:MAX_NAMED])]


def _trains(norm: nn.Module) -> bool:
    """Whether a normalisation has running statistics, and no scale that is frozen."""
    frozen = isinstance(norm.weight, torch.Tensor) and not norm.weight.requires_grad
    return norm.running_mean is not None and not frozen


@torch.no_grad()
def _virgin(norms: Sequence[nn.Module]) -> torch.Tensor | float:
    """Return whether the running statistics of all these are 0 and 1 still; 0 where there are none."""
    flags: list[torch.Tensor] = []
    for norm in norms:
        mean, variance = norm.running_mean, norm.running_var
        if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor) or mean.is_meta:
            return 0.0
        flags.append((mean == 0).all() & (variance == 1).all())
    if not flags:
        return 0.0
    device = flags[0].device
    return torch.stack([flag for flag in flags if flag.device == device]).all().float()
