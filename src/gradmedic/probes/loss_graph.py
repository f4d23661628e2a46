"""Which loss was computed, and what it was fed with: read off the graph that `backward()` is about to use.

From the root on, through sums, means, factors and views only, the search meets the loss functions themselves: torch's
own, and the forms in which people write them by hand. It ends where the model begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.probes.loss_sign import sign_at_root
from gradmedic.probes.node_values import behind, operation, parent, saved, scalar, setting

#: More loss calls than this say nothing new.
MAX_CALLS = 8
_MAX_NODES = 256

_NATIVE = {
    "NllLoss": "nll", "NllLoss2D": "nll", "BinaryCrossEntropy": "bce",
    "BinaryCrossEntropyWithLogits": "bce_with_logits",
    "MseLoss": "mse", "SmoothL1Loss": "smooth_l1", "HuberLoss": "huber",
}  # fmt: skip
_REDUCTIONS = ("none", "mean", "sum")
#: What may lie between a loss and the root.
COMBINING = frozenset((
    "Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Sum", "Mean", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze",
    "Stack", "Cat", "Select", "Index", "Where", "MaskedFill", "MaskedSelect", "ToCopy", "Clone", "Expand", "Alias",
    "Gather", "Pow", "Sqrt", "Slice", "Unbind", "Transpose", "Permute", "NanToNum",
))  # fmt: skip


@dataclass(slots=True)
class LossCall:
    """One loss call; see `facts.LossFact` for the words.

    Attributes:
        node: the node that holds the loss's operands.
        user: the node that uses it on the way to the root; None for the root itself.
        source: the node that computed what the loss is given, views left out; None for a constant.
        sign: 1 where it is minimised, -1 where it is maximised, 0 where that cannot be told.
    """

    kind: str
    node: Any
    user: Any = None
    source: Any = None
    reduction: str = "mean"
    normalized: bool = False
    weighted: bool = False
    sign: int = 0

    @property
    def feed(self) -> str:
        """Operation behind the input."""
        return operation(self.source)

    @property
    def inner(self) -> str:
        """Operation behind that one."""
        return operation(behind(parent(self.source)))


def find_losses(roots: Iterable[torch.Tensor]) -> list[LossCall]:
    """Find the loss calls in front of the roots.

    Args:
        roots: the tensors on which `backward` is about to be called.

    Returns:
        At most 8 calls, those nearest to the root first; none where the loss was computed in a way that is not known.
        Nothing is computed and nothing is read from a device.
    """
    users: dict[Any, Any] = {root.grad_fn: None for root in roots if root.grad_fn is not None}
    queue = list(users)
    found: list[LossCall] = []
    for node in queue:
        call = _native(node) or _by_hand(node) or _from_log_softmax(node, users.get(node))
        if call is not None:
            call.user = users[node]
            _follow(call, users)
            call.sign = sign_at_root(node, users, log_probability=operation(node) == "LogSoftmax")
            found.append(call)
            continue
        if operation(node) not in COMBINING:
            continue
        for each, _ in node.next_functions:
            if each is not None and each not in users and not hasattr(each, "variable") and len(users) < _MAX_NODES:
                users[each] = node
                queue.append(each)
    # Label smoothing uses the same log_softmax a second time.
    used = {id(behind(parent(call.node))) for call in found if call.kind == "cross_entropy"}
    return [call for call in found if call.kind != "soft_cross_entropy" or id(call.node) not in used][:MAX_CALLS]


def _native(node: Any) -> LossCall | None:
    kind = _NATIVE.get(operation(node))
    if kind is None:
        return None
    source = behind(parent(node, 0) or (parent(node, 1) if kind in ("mse", "smooth_l1", "huber") else None))
    if kind == "nll" and operation(source) == "LogSoftmax":
        kind, source = "cross_entropy", behind(parent(source))
    reduction = setting(node, "reduction")
    made = LossCall(kind, node, source=source, reduction=_REDUCTIONS[reduction] if reduction in (0, 1, 2) else "mean")
    weights = ("weight", "pos_weight")
    made.weighted = any(
        getattr(node, f"_raw_saved_{name}", None) is not None and _there(node, name) for name in weights
    )
    return made


def _there(node: Any, name: str) -> bool:
    return saved(node, name, near_loss=True) is not None


def _by_hand(node: Any) -> LossCall | None:
    """Recognise (a - b)**2, (a - b) * (a - b) and |a - b|, where one of the two is a constant."""
    kind = operation(node)
    difference = parent(node)
    if kind == "Mul":
        squared = difference is not None and difference is parent(node, 1)
    else:
        squared = kind == "Pow" and setting(node, "exponent") == 2
    if (
        not (squared or kind == "Abs")
        or operation(difference) != "Sub"
        or setting(difference, "alpha") not in (1, None)
    ):
        return None
    given = [each for each, _ in difference.next_functions]
    if len(given) != 2 or (given[0] is None) == (given[1] is None):
        return None
    return LossCall("mse" if squared else "l1", node, source=behind(given[0] or given[1]), reduction="none")


def _from_log_softmax(node: Any, user: Any) -> LossCall | None:
    if operation(node) != "LogSoftmax":
        return None
    chosen = operation(user) in ("Gather", "Index")  # the log-probability of one class for each row
    kind = "cross_entropy" if chosen else "soft_cross_entropy"
    return LossCall(kind, node, source=behind(parent(node)), reduction="none")


def _follow(call: LossCall, users: dict[Any, Any]) -> None:
    """Follow a call to the root: how it is reduced, divided and weighted on the way."""
    picked = call.kind in ("cross_entropy", "soft_cross_entropy") and operation(call.node) == "LogSoftmax"
    node = call.user
    while node is not None:
        kind = operation(node)
        if kind == "Mean":
            call.normalized = call.normalized or call.reduction == "sum"
            call.reduction = "mean"
        elif kind == "Sum" and call.reduction == "none":
            call.reduction = "sum"
        elif kind == "Div":
            call.normalized = True
        elif kind == "Mul":
            call.normalized = call.normalized or _shrinks(node)
            call.weighted = call.weighted or (not picked and _is_weight(node))
            picked = False
        elif kind in ("Index", "MaskedSelect", "Where", "MaskedFill", "Gather"):
            call.weighted = call.weighted or not picked
            picked = picked and kind not in ("Gather", "Index")
        node = users[node]


def _shrinks(node: Any) -> bool:
    factors = (scalar(node, "other"), scalar(node, "self"))
    return any(factor is not None and abs(factor) < 1 for factor in factors)


def _is_weight(node: Any) -> bool:
    """Whether a product weighs single rows or elements: its other factor has as many."""
    factors = (saved(node, name, near_loss=True) for name in ("other", "self"))
    return any(factor is not None and factor.dim() > 0 for factor in factors)
