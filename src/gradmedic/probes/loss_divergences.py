"""Losses that torch has no node for: `kl_div` and `poisson_nll_loss`, told by the operations that they are made of.

    kl_div                    xlogy(t, t) - t * x
    kl_div, log_target        exp(t) * (t - x)
    poisson_nll_loss          exp(x) - t * x

Both want the logarithm of what a network may as well put out itself, and train on the wrong one without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gradmedic.probes.loss_graph import COMBINING, LossCall
from gradmedic.probes.loss_values import MAX_ELEMENTS, Numbers
from gradmedic.probes.node_values import behind, linear_output, operation, parent, saved, setting

KINDS = ("kl_div", "kl_div_log_target", "poisson_nll")
_MAX_NODES = 256
_MAX_ROWS = 256


def find_divergences(roots: Iterable[torch.Tensor]) -> list[tuple[LossCall, Numbers]]:
    """Find calls of `kl_div` and `poisson_nll_loss` in front of the roots.

    Args:
        roots: the tensors on which `backward` is about to be called.

    Returns:
        For each call, but for `kl_div` on log_softmax, what `loss_graph.LossCall` says, and numbers: "target_unit_rows"
        (share of rows of the targets that are distributions; of a `log_target` call, of targets whose exponential is
        taken although they are) and "positive_share" (share of a linear layer's outputs above 0). 0-d tensors on the
        loss's device; no host synchronisation.
    """
    queue = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(queue)
    found: list[tuple[LossCall, Numbers]] = []
    for node in queue:
        made = _kl_div(node) or _with_log_target(node) or _poisson(node)
        if made is not None:
            found.append(made)
            continue
        if operation(node) in COMBINING:
            fresh = [each for each, _ in node.next_functions if each is not None and each not in seen]
            seen.update(fresh)
            queue.extend(fresh[: max(0, _MAX_NODES - len(queue))])
    return found


def _kl_div(node: Any) -> tuple[LossCall, Numbers] | None:
    product = behind(parent(node, 1))
    if operation(node) != "Sub" or parent(node) is not None or setting(node, "alpha") not in (1, None):
        return None
    target, source = _weighed(product)
    if target is None or source is None or operation(source) == "LogSoftmax":
        return None  # as it should be: `loss_graph` sees it
    numbers = {"target_unit_rows": _unit_rows(target)}
    return LossCall("kl_div", node, source=source, reduction="none"), numbers | _positive(source)


def _with_log_target(node: Any) -> tuple[LossCall, Numbers] | None:
    factor, source = _weighed(node)
    if factor is None or operation(source) != "Sub" or parent(source) is not None:
        return None
    given = behind(parent(source, 1))
    numbers: Numbers = {"target_unit_rows": _unit_rows(factor.clamp(min=torch.finfo(factor.dtype).tiny).log())}
    return LossCall("kl_div_log_target", node, source=given, reduction="none"), numbers


def _poisson(node: Any) -> tuple[LossCall, Numbers] | None:
    rate = behind(parent(node))
    if operation(node) != "Sub" or operation(rate) != "Exp" or setting(node, "alpha") not in (1, None):
        return None
    target, source = _weighed(behind(parent(node, 1)))
    if target is None or source is None or source is not behind(parent(rate)):
        return None
    return LossCall("poisson_nll", node, source=source, reduction="none"), {}


def _weighed(node: Any) -> tuple[torch.Tensor | None, Any]:
    """Return the constant factor of a product, and the node that computed the other one."""
    if operation(node) != "Mul" or (parent(node) is None) == (parent(node, 1) is None):
        return None, None
    place = 1 if parent(node) is None else 0
    factor = saved(node, "self" if place else "other", near_loss=True)
    if factor is None or not factor.dim() or not factor.is_floating_point():
        return None, None
    return factor, behind(parent(node, place))


def _unit_rows(values: torch.Tensor) -> torch.Tensor:
    """Return the share of rows that are distributions, along the last dimension or the second."""
    if values.dim() < 2:
        values = values[None]
    shares = []
    for axis in {values.dim() - 1, 1}:
        rows = values.movedim(axis, -1).reshape(-1, values.shape[axis])
        rows = rows[:: max(1, -(-rows.numel() // MAX_ELEMENTS))].float()
        shares.append((((rows.sum(1) - 1).abs() < 1e-3) & (rows >= -1e-6).all(1)).float().mean())
    return torch.stack(shares).amax()


def _positive(source: Any) -> Numbers:
    logits = linear_output(source, _MAX_ROWS)
    return {} if logits is None else {"positive_share": (logits > 1e-3).float().mean()}
