"""What a loss was given: statistics of its predictions and targets, and what a constant prediction would have cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from gradmedic.probes.loss_graph import LossCall
from gradmedic.probes.node_values import behind, linear_output, operation, parent, saved, setting

Numbers = dict[str, torch.Tensor | float]

#: Elements of a prediction that are looked at, at most; rows are left out evenly beyond.
MAX_ELEMENTS = 2**17
_MAX_LOGIT_ROWS = 32
#: Targets whose entropy is taken, about: logarithms are dear, and it is a mean.
_MAX_FLOOR = 2**15
#: A hand-written loss keeps the difference only; the prediction is computed again where that is cheaper than this.
_MAX_PRODUCT = 2**24

#: What an activation can put out: (lowest, highest).
RANGES: dict[str, tuple[float, float]] = {
    "Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Hardsigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf), "Softplus": (0.0, math.inf), "LogSoftmax": (-math.inf, 0.0), "Exp": (0.0, math.inf),
}  # fmt: skip

_PENALTIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss,
}  # fmt: skip


@torch.no_grad()
def measure_loss(call: LossCall) -> tuple[Numbers, torch.Tensor | None]:
    """Measure the operands of a loss.

    Args:
        call: the loss call, before its backward pass.

    Returns:
        Numbers by name (see `facts.LossFact`), 0-d tensors on the loss's device, and how often each class was a target
        (float32 [classes]; None where there are no classes). No host synchronisation.
    """
    if call.kind in ("cross_entropy", "nll", "soft_cross_entropy"):
        return _of_classes(call)
    if call.kind in ("bce", "bce_with_logits"):
        return _of_binary(call)
    return _of_regression(call), None


# -- classes -------------------------------------------------------------------------------------------------------


def _of_classes(call: LossCall) -> tuple[Numbers, torch.Tensor | None]:
    scores = saved(call.node, "self", near_loss=True)
    if operation(call.node) == "LogSoftmax":
        scores = saved(call.node, "result", near_loss=True)
    if scores is None:
        return {}, None
    axis = setting(call.node, "dim") if operation(call.node) == "LogSoftmax" else (1 if scores.dim() > 1 else 0)
    axis = axis % scores.dim() if isinstance(axis, int) else scores.dim() - 1
    classes = scores.shape[axis]
    target = _class_targets(call, scores, axis)
    ignored = setting(call.node, "ignore_index")
    log_p, chosen = _rows(scores, target, axis)
    numbers: Numbers = {"classes": float(classes), **_of_scores(log_p)}
    if call.kind != "nll":
        numbers |= _log_z(call.source)
    if target is None or chosen is None:
        return numbers, None
    kept = chosen != (-100 if ignored is None else ignored)
    picked = log_p.gather(1, torch.where(kept, chosen, 0)[:, None])[:, 0]
    numbers["loss"] = -(torch.where(kept, picked, 0.0)).sum() / kept.sum().clamp(min=1)
    counts = _count(target.reshape(-1), -100 if ignored is None else ignored, classes)
    numbers["count"] = counts.sum()
    numbers["label_share"] = counts.max() / counts.sum().clamp(min=1)
    return numbers | _class_weights(call, counts), counts


def _class_targets(call: LossCall, scores: torch.Tensor, axis: int) -> torch.Tensor | None:
    """Return the class of each row, in the order of the rows; None where it is not known."""
    if operation(call.node) != "LogSoftmax":
        return saved(call.node, "target", near_loss=True)
    if operation(call.user) != "Gather" or axis != scores.dim() - 1:
        return None
    index = saved(call.user, "index", near_loss=True)
    return index if index is not None and index.numel() * scores.shape[axis] == scores.numel() else None


def _rows(scores: torch.Tensor, target: torch.Tensor | None, axis: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a bounded, even choice of rows: scores [R, classes] in fp32 or wider, and their targets [R]."""
    classes = scores.shape[axis]
    flat = target.reshape(-1) if target is not None else None
    whole = scores.movedim(axis, -1)
    wanted = max(32, MAX_ELEMENTS // classes)
    total = scores.numel() // classes
    if total > wanted:
        places = torch.arange(0, total, -(-total // wanted), device=scores.device)
        rows = whole[torch.unravel_index(places, whole.shape[:-1])] if whole.dim() > 2 else whole[places]
        flat = flat[places] if flat is not None else None
    else:
        rows = whole.reshape(-1, classes)
    return _wide(rows), flat


def _of_scores(log_p: torch.Tensor) -> Numbers:
    """Return what log-probabilities [R, K] say of the predictions."""
    rows, classes = log_p.shape
    votes = _count(log_p.argmax(1), -1, classes)
    # Cheaper than `entr`, which takes logarithms again; what is below e^-200 adds nothing.
    entropy = -log_p.exp().mul_(log_p.clamp(min=-200.0)).sum(1).mean()
    sums_to_one = ((log_p.sum(1) - 1).abs() < 1e-3) & (log_p.amin(1) >= 0)
    return {
        "top_share": votes.max() / rows,
        "entropy": entropy / math.log(max(classes, 2)),
        "positive_share": torch.count_nonzero(log_p > 1e-3) / log_p.numel(),
        "unit_rows": sums_to_one.float().mean(),
    }


def _log_z(source: Any) -> Numbers:
    """Return the mean |logsumexp| of logits that a linear layer made: log_softmax does not keep them."""
    logits = linear_output(source, _MAX_LOGIT_ROWS)
    return {} if logits is None else {"log_z": torch.logsumexp(logits.float(), 1).abs().mean()}


def _count(values: torch.Tensor, ignored: int, classes: int) -> torch.Tensor:
    """Count values 0..classes-1, [classes]; unlike bincount without reading the largest one back from the device."""
    ones = (values != ignored).float()
    counts = torch.zeros(classes, device=values.device)
    return counts.scatter_add_(0, values.clamp(0, classes - 1), ones)


def _class_weights(call: LossCall, counts: torch.Tensor) -> Numbers:
    """Return the weight of the class that is most frequent in the batch over that of the rarest one in it."""
    weight = saved(call.node, "weight", near_loss=True) if call.node.name().startswith("NllLoss") else None
    if weight is None or weight.shape != counts.shape:
        return {}
    rarest = torch.where(counts > 0, counts, math.inf).argmin()
    return {"weight_ratio": (weight[counts.argmax()] / weight[rarest]).float()}


# -- yes or no ------------------------------------------------------------------------------------------------------


def _of_binary(call: LossCall) -> tuple[Numbers, torch.Tensor | None]:
    given, target = (saved(call.node, name, near_loss=True) for name in ("self", "target"))
    if given is None or target is None or given.shape != target.shape:
        return {}, None
    scores, wanted = _paired(given, target)
    if call.kind == "bce":
        chance = scores
        loss = -(wanted * scores.log().clamp(min=-100) + (1 - wanted) * (-scores).log1p().clamp(min=-100))
    else:
        chance = scores.sigmoid()
        loss = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    yes = (chance > 0.5).float().mean(0)
    share = wanted.float().mean(0)
    inside = wanted[:: max(1, wanted.numel() // _MAX_FLOOR)].clamp(0, 1)
    numbers: Numbers = {
        "classes": 2.0,
        "count": float(target.numel()),
        "loss": loss.mean(),
        "top_share": torch.maximum(yes, 1 - yes).mean(),
        "label_share": torch.maximum(share, 1 - share).mean(),
        "entropy": (torch.special.entr(chance) + torch.special.entr(1 - chance)).mean() / math.log(2),
        "outside_share": ((wanted < -1e-3) | (wanted > 1 + 1e-3)).float().mean(),
        "floor": (torch.special.entr(inside) + torch.special.entr(1 - inside)).mean(),
    }
    numbers |= _moments("target", wanted) | _moments("prediction", scores)
    weight = saved(call.node, "pos_weight", near_loss=True) if call.kind == "bce_with_logits" else None
    if weight is not None and weight.numel() == 1:
        rare = share.mean() < 0.5
        numbers["weight_ratio"] = torch.where(rare, 1 / weight, weight).reshape(()).float()
    positives = wanted.float().sum(0)
    columns = torch.stack([wanted.shape[0] - positives, positives]).float()
    return numbers, columns


# -- numbers ----------------------------------------------------------------------------------------------------------


def _of_regression(call: LossCall) -> Numbers:
    prediction, target = _operands(call)
    if prediction is None or target is None or prediction.shape != target.shape:
        return {}
    given, wanted = _paired(prediction, target)
    penalty = _PENALTIES[call.kind]
    constant = wanted.mean(0, keepdim=True).expand_as(wanted)
    numbers: Numbers = {"count": float(target.numel()), "rows": float(target.shape[0] if target.dim() else 1)}
    numbers |= {"loss": penalty(given, wanted), "baseline": penalty(constant, wanted)}
    if len(wanted) > 1:
        numbers["target_spread"] = wanted.var(0, correction=0).mean()
        numbers["prediction_spread"] = given.var(0, correction=0).mean()
    limits = RANGES.get(call.feed)
    if limits is not None:
        low, high = limits
        slack = 1e-3 * max(1.0, high - low if math.isfinite(high - low) else 1.0)
        numbers["outside_share"] = ((wanted < low - slack) | (wanted > high + slack)).float().mean()
    return numbers | _moments("target", wanted) | _moments("prediction", given)


def _operands(call: LossCall) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if operation(call.node) not in ("Pow", "Mul", "Abs"):
        given, wanted = (saved(call.node, name, near_loss=True) for name in ("self", "target"))
        return (wanted, given) if parent(call.node, 0) is None else (given, wanted)
    difference = saved(call.node, "self", near_loss=True)
    edges = [each for each, _ in parent(call.node).next_functions]
    first = edges[0] is not None
    made = _made_by(behind(edges[0] if first else edges[1], in_place=True))
    if difference is None or made is None or made.numel() != difference.numel():
        return None, None
    prediction = made.reshape(difference.shape).to(difference.dtype)
    return prediction, prediction - difference if first else prediction + difference


def _made_by(node: Any) -> torch.Tensor | None:
    """Return what a node put out: kept, or cheap to compute again."""
    result = saved(node, "result", near_loss=True)
    if result is not None:
        return result
    first, second = (setting(node, f"{name}_sym_sizes") for name in ("mat1", "mat2"))
    if operation(node) == "Mm":
        first = setting(node, "self_sym_sizes")
    if not first or not second or first[0] * first[1] * second[1] > _MAX_PRODUCT:
        return None
    return linear_output(node)


# -- both ------------------------------------------------------------------------------------------------------------


def _paired(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same bounded choice of rows of two tensors of one shape, [R, features], fp32 or wider."""
    rows = one.shape[0] if one.dim() else 1
    stride = max(1, -(-one.numel() // MAX_ELEMENTS))
    pair = (each.reshape(rows, -1)[:: min(stride, max(1, rows // 16))] for each in (one, other))
    first, second = pair
    narrow = max(1, -(-first.numel() // MAX_ELEMENTS))
    return _wide(first[:, ::narrow]), _wide(second[:, ::narrow])


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _moments(name: str, values: torch.Tensor) -> Numbers:
    low, high = torch.aminmax(values)
    mean = values.double().mean() if values.device.type != "mps" else values.mean()
    rms = values.square().mean(dtype=mean.dtype).sqrt()
    std = (values - mean).square().mean(dtype=mean.dtype).sqrt()
    return {f"{name}_min": low, f"{name}_max": high, f"{name}_mean": mean, f"{name}_std": std, f"{name}_rms": rms}
