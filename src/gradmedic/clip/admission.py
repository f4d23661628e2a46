"""Whether a transform fits the optimizers that it is to treat; said before training begins, not in the middle."""

from __future__ import annotations

from typing import Any

import torch

from gradmedic.clip.base import needs_of, scope_of
from gradmedic.clip.spec import Spec
from gradmedic.errors import TransformError


def admit(transform: Any, optimizer: Any) -> None:
    """Raise TransformError if the transform cannot treat this optimizer.

    Raises:
        TransformError: LBFGS, or an optimizer without the second moment that the transform reads.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TransformError(
            "transform: LBFGS calls its closure several times within one step and fits curvature from the gradients; "
            "clipped ones would pair losses with gradients that are not theirs. Leave the transform out, or use "
            "another optimizer"
        )
    defaults = getattr(optimizer, "defaults", {})
    if "second_moment" in needs_of(transform) and "betas" not in defaults:
        raise TransformError(
            f"transform: {transform!r} reads the second moment (exp_avg_sq) that Adam and its kin keep, and "
            f"{type(optimizer).__name__} keeps none; use gm.clip.zclip() or gm.clip.adagc() with it"
        )


def admit_in_backward(transform: Any) -> None:
    """Raise TransformError if the transform needs all gradients at once, and optimizers step inside backward."""
    if scope_of(transform) != "tensor":
        raise TransformError(
            f"transform: optimizers step inside backward here, each as soon as its own gradients are there, and "
            f"{transform!r} needs all gradients at once; use one that treats every tensor by itself, such as "
            'gm.clip.norm(1.0, per="tensor"), gm.clip.agc() or gm.clip.value(0.1), or step after backward'
        )


def check_patterns(transform: Any, spec: Spec) -> None:
    """Raise InputError if a pattern of the transform, or of one inside it, matches nothing of all that is trained."""
    for each in nested(transform):
        check = getattr(each, "check", None)
        if callable(check):
            check(spec)


def nested(transform: Any) -> list[Any]:
    """Return a transform and all transforms inside it."""
    inside: list[Any] = [*getattr(transform, "transforms", ())]
    inside += [getattr(transform, name, None) for name in ("first", "then", "transform", "default")]
    inside += [policy for _, policy in getattr(transform, "policies", ())]
    found = [transform]
    for each in inside:
        if hasattr(each, "init") and hasattr(each, "update"):
            found += nested(each)
    return found
