"""A drop-in for `torch.nn.utils.clip_grad_norm_`, right where torch is not."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradmedic.clip.apply import scale_gradients
from gradmedic.clip.norm import check_threshold, scale_to
from gradmedic.clip.summary import joint_norm
from gradmedic.errors import InputError
from gradmedic.stats import StatsTable, gradient_stats
from gradmedic.stats.distribution import Distribution
from gradmedic.stats.joining import run_together
from gradmedic.stats.parts import parts_to_measure, readable, visible_gradient
from gradmedic.stats.sharded import may_be_wide
from gradmedic.stats.spans import Groups, Spans, check_groups
from gradmedic.torch_hooks import ClipCall, announce_clip, announce_clip_norm


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    groups: Any = None,
) -> torch.Tensor:
    """Clip the joint norm of the gradients, in place.

    The same result as torch's on ordinary input. Beyond it: a NaN or infinite element in one gradient leaves all others
    as they are (torch spreads it to every parameter, or zeroes them); huge finite gradients are scaled to `max_norm`
    (torch's fp32 norm overflows and zeroes them); fp16 and bf16 gradients are measured in fp32 or better; sparse and
    mixed-dtype lists work; a tensor that is listed twice counts once; a gradient of two parameters is scaled once.

    Args:
        parameters: a tensor or an iterable of tensors (a generator is fine); those without `.grad` are passed over.
        max_norm: largest norm allowed, > 0; `math.inf` measures only.
        norm_type: the p of the norm, > 0; `math.inf` for the largest magnitude.
        error_if_nonfinite: raise when any gradient element is NaN or infinite, naming the tensors' places.
        foreach: accepted for compatibility; there is one implementation.
        groups: for pipeline stages and experts, whose likes lie on other ranks: a process group (or a device mesh, or a
            list of them to be joined over one after the other) for all of the parameters; or, for some of them, a list
            of pairs (parameters, group). Every rank of a group must call this, also one without gradients.

    Returns:
        The norm before clipping: a plain 0-d tensor, fp32 (fp64 for fp64 gradients), on the gradients' device; 0 when
        there are no gradients; NaN or infinity when any element is. No host synchronisation on a device unless
        `error_if_nonfinite`.

    Raises:
        InputError: for a `max_norm` that is negative, zero or NaN.
        RuntimeError: for non-finite gradients with `error_if_nonfinite`.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(2)); w.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([w], max_norm=1.0)
        tensor(5.)
    """
    limit = check_threshold(max_norm, "max_norm")
    power = check_threshold(math.inf if str(norm_type) == "inf" else norm_type, "norm_type")  # torch takes the word
    chosen = _unique(parameters)
    announce_clip_norm(chosen)
    taking_part = [parameter for parameter in chosen if readable(parameter)]
    spans = None if groups is None else _spans(groups, taking_part)
    if not taking_part and spans is None:
        with announce_clip(ClipCall("gradmedic", chosen, max_norm=limit)):  # a clip in the wrong place may find none
            return torch.zeros((), device=chosen[0].device if chosen else None)
    distribution = Distribution(taking_part)  # every rank calls this, as it would call torch's
    gradients, _ = parts_to_measure(taking_part)
    table = distribution.join_table(gradient_stats(gradients))
    norms, nonfinite = _p_norms(gradients, power, table, distribution), table.nonfinite()
    sums = torch.stack([table.nan_count, table.inf_count]).double()
    total, kinds = joint_norm(norms, power), sums.sum(1)
    if spans is not None:
        joint = spans.joining_norm(norms, table.nan_count + table.inf_count, power)
        (total, nonfinite), kinds = run_together([joint, spans.joining_totals(sums)])
    if error_if_nonfinite:
        _raise_if_nonfinite((table.nan_count + table.inf_count).tolist(), int(nonfinite))
    call = ClipCall("gradmedic", chosen, max_norm=limit, total_norm=total)
    with announce_clip(call):
        written = [gradient for parameter in taking_part if (gradient := visible_gradient(parameter)) is not None]
        scale_gradients(written, scale_to(limit, total, nonfinite))
    poison = torch.where(kinds[0] > 0, math.nan, torch.where(kinds[1] > 0, math.inf, 0.0))
    exact = any(gradient.dtype in (torch.float64, torch.complex128) for gradient in gradients)
    return (total + poison.to(total.device)).to(torch.float64 if exact else torch.float32)


def _unique(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    listed = list(parameters)
    if not listed and isinstance(parameters, types.GeneratorType):
        warnings.warn(
            "clip_grad_norm_: the generator of parameters is empty or used up, so nothing was clipped; pass a list, or "
            "model.parameters() anew",
            stacklevel=4,
        )
    return list({id(parameter): parameter for parameter in listed}.values())


def _spans(groups: Any, parameters: Sequence[torch.Tensor]) -> Spans:
    """Return which of the parameters go into the norm together with those of other ranks."""
    listed = list(groups) if isinstance(groups, (list, tuple)) else []
    pairs = listed if listed and all(isinstance(each, tuple) and len(each) == 2 for each in listed) else None
    places: dict[Groups, list[int]] = {}
    known = {id(parameter): at for at, parameter in enumerate(parameters)}
    for given, group in pairs or [(parameters, groups)]:
        named = [given] if isinstance(given, torch.Tensor) else list(given)
        if not named and isinstance(given, types.GeneratorType):
            raise InputError("groups: the generator of parameters is empty or used up; pass a list")
        at = [known[id(parameter)] for parameter in named if id(parameter) in known]
        places.setdefault(check_groups(group, "groups"), []).extend(at)
    return Spans(len(parameters), places, wide=may_be_wide([parameter.dtype for parameter in parameters]))


def _p_norms(
    gradients: Sequence[torch.Tensor], power: float, table: StatsTable, distribution: Distribution
) -> torch.Tensor:
    """p-norms over the finite elements, float64 [N]."""
    if power == 2.0:
        return table.norm
    if math.isinf(power):
        return table.max_abs
    # Each gradient is divided by its largest magnitude first: |g|^p of the quotient cannot overflow.
    parts = [_one_p_norm(g, power, m) for g, m in zip(gradients, table.max_abs, strict=True)]
    vector = torch.stack([part.to(table.max_abs.device) for part in parts]) if parts else table.max_abs
    return distribution.join_p_norms(vector, power)


def _one_p_norm(gradient: torch.Tensor, power: float, largest: torch.Tensor) -> torch.Tensor:
    values = gradient.coalesce()._values() if gradient.is_sparse else gradient
    magnitude = values.abs()
    magnitude = torch.where(torch.isfinite(magnitude), magnitude, torch.zeros_like(magnitude))
    top = largest.to(values.device)
    safe = torch.where(top > 0, top, torch.ones_like(top))
    return safe * (magnitude.double() / safe).pow(power).sum().pow(1.0 / power)


def _raise_if_nonfinite(counts: list[int], everywhere: int) -> None:
    sick = [place for place, count in enumerate(counts) if count]
    if sick:
        shown = ", ".join(str(place) for place in sick[:8]) + (", …" if len(sick) > 8 else "")
        raise RuntimeError(
            f"clip_grad_norm_: {sum(counts)} gradient elements are NaN or infinite, in the gradients at places {shown} "
            "of the list; nothing was changed. Set error_if_nonfinite=False to go on, or look for the origin with "
            "gradmedic.watch"
        )
    if everywhere:
        raise RuntimeError(
            f"clip_grad_norm_: {everywhere} gradient elements are NaN or infinite, all on other ranks; nothing was "
            "changed"
        )
