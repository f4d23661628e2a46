"""AGC: the gradient of each output unit is bounded by a share of the unit's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradmedic.clip.base import BaseTransform, Decision, Scope
from gradmedic.clip.matching import check_matched, match
from gradmedic.clip.norm import NormClip
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.param_ratio import param_ratio
from gradmedic.errors import InputError
from gradmedic.stats.transfer import to_device


@dataclass(frozen=True)
class AGC(BaseTransform):
    """Adaptive gradient clipping by output unit; see `agc`."""

    clip: NormClip
    exclude: tuple[str, ...]
    unit_dims: tuple[tuple[str, int | None], ...]

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """Every tensor is clipped by itself."""
        return "tensor"

    def check(self, spec: Spec) -> None:
        """Raise InputError if a pattern matches none of all the tensors, or an axis is not there."""
        check_matched([p for p in self.exclude if p != "output"], spec, "clip.agc: exclude")
        check_matched([p for p, _ in self.unit_dims], spec, "clip.agc: unit_dims")

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step."""
        spec, keep, positions = self._plan(summary.spec)
        if len(positions) < len(spec):
            summary = summary.among(keep, positions)
        return self.clip.update(replace(summary, spec=spec), state)

    def _plan(self, spec: Spec) -> tuple[Spec, torch.Tensor, frozenset[int]]:
        """Return the tensors with their axes, and which of them are clipped, on the device and on the host."""
        key = ("agc", self.exclude, self.unit_dims)
        if key not in spec.memo:
            excluded = {at for pattern in self.exclude for group in match(pattern, spec).groups for at in group}
            kept = [at not in excluded for at in range(len(spec))]
            positions = frozenset(at for at, flag in enumerate(kept) if flag)
            keep = to_device(torch.tensor(kept, dtype=torch.bool, device="cpu"), spec.device)
            spec.memo[key] = (self._prepared(spec), keep, positions)
        plan: tuple[Spec, torch.Tensor, frozenset[int]] = spec.memo[key]
        return plan

    def _prepared(self, spec: Spec) -> Spec:
        tensors = list(spec.tensors)
        for pattern, axis in self.unit_dims:
            for group in match(pattern, spec).groups:
                for at in group:
                    tensors[at] = replace(tensors[at], unit_dim=axis if len(tensors[at].shape) > 1 else None)
        return Spec(tuple(tensors), spec.device)

    def init(self, spec: Spec) -> State:
        """Return the state of the clip inside, which is none."""
        for pattern, axis in self.unit_dims:
            for group in match(pattern, spec).groups:
                for at in group:
                    shape = spec.tensors[at].shape
                    if axis is not None and len(shape) > 1 and not 0 <= axis < len(shape):
                        raise InputError(
                            f"clip.agc: unit_dims[{pattern!r}]: expected an axis of {spec.tensors[at].name}, whose "
                            f"shape is {shape}, got {axis}"
                        )
        self._plan(spec)  # copies to the device are made here, before training
        return self.clip.init(spec)


def agc(
    ratio: float = 0.01,
    eps: float = 1e-3,
    *,
    exclude: Sequence[str] = ("output",),
    unit_dims: Mapping[str, int | None] | None = None,
) -> AGC:
    """Clip each output unit's gradient to `ratio` times its weights' norm (AGC, arXiv:2102.06171, equation 3).

    A unit is a row of a linear map or an embedding, a filter of a convolution; a vector is one unit. Transposed
    convolutions have their units along axis 1. Weights count as at least `eps`, so that those that begin at zero learn
    (Composer's code has no such floor). Nothing is remembered.

    Args:
        ratio: largest gradient norm relative to the weights' norm, > 0. The paper: 0.01, smaller for larger batches.
        eps: least norm that weights count as, > 0.
        exclude: patterns or kinds that are left alone; the paper leaves out the last linear layer ("output").
        unit_dims: pattern -> axis of the output units, None for the whole tensor, where the layout is unusual
            (experts stacked as (experts, in, out)).

    Returns:
        A transform. Its cost is a pass over gradients and weights, and a few launches for each tensor.

    Example:
        >>> agc(0.02).clip.threshold.ratio
        0.02
    """
    if isinstance(exclude, str):
        raise InputError(f"agc: exclude: expected a list of patterns, got {exclude!r}; write [{exclude!r}]")
    clip = NormClip(param_ratio(ratio, eps), "unit", 2.0, 0.0)
    dims: dict[str, Any] = dict(unit_dims or {})
    return AGC(clip, tuple(exclude), tuple(dims.items()))
