"""Whether a loss is minimised or maximised: the sign with which it comes out at the root of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradmedic.probes.node_values import behind, operation, parent, scalar, setting

#: What may lie between a loss and the root and turns its sign in no case.
_KEEPING = frozenset((
    "Add", "Sum", "Mean", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Stack", "Cat", "Select", "Index",
    "Where", "MaskedFill", "MaskedSelect", "ToCopy", "Clone", "Expand", "Alias", "Gather", "Slice", "Unbind",
    "Transpose", "Permute", "NanToNum",
))  # fmt: skip
#: What puts out nothing below zero.
_POSITIVE = frozenset(("Exp", "Softplus", "Sigmoid", "Softmax", "Sqrt", "Relu"))
#: Places of a product's factors, and the names under which a constant one is kept: by its other factor.
_FACTORS = ((0, "self"), (1, "other"))


def sign_at_root(node: Any, users: Mapping[Any, Any], *, log_probability: bool = False) -> int:
    """Return the sign that a loss has at the root.

    A squared error over a variance that was computed is part of a log-likelihood; so it is treated from there on.

    Args:
        node: the loss's node.
        users: each node's user on the way to the root; None for the root itself.
        log_probability: whether the node computes log-probabilities, which have to be maximised. A negative factor of
            these is no sign but a reward (policy gradients), so that nothing is said then.

    Returns:
        1 where lowering the root lowers the loss, -1 where it raises it, 0 where it cannot be told.
    """
    sign = -1 if log_probability else 1
    while sign and (user := users.get(node)) is not None:
        sign *= _turn(user, node, sign)
        if log_probability and operation(user) in ("Mul", "Div") and _turn(user, node, sign) != 1:
            return 0
        log_probability = log_probability or _weighs(user, node)
        node = user
    return sign


def _turn(user: Any, node: Any, sign: int) -> int:
    """Return what one operation does to the sign of one of its inputs."""
    kind = operation(user)
    place = next((at for at, (each, _) in enumerate(user.next_functions) if each is node), 0)
    if kind in _KEEPING:
        return 1
    if kind == "Neg":
        return -1
    if kind in ("Sub", "Rsub"):
        alpha = setting(user, "alpha")
        taken = place == (1 if kind == "Sub" else 0)
        if taken and isinstance(alpha, (int, float)) and alpha < 0:
            return 1
        return -1 if taken else 1
    if kind == "Mul":
        return _sign_of(scalar(user, "self" if place else "other"))
    if kind == "Div":
        return _sign_of(scalar(user, "other")) or int(_weighs(user, node)) if place == 0 else 0
    if kind == "Sqrt" or (kind == "Pow" and _positive(setting(user, "exponent"))):
        return 1 if sign > 0 else 0
    return 0


def _weighs(user: Any, node: Any) -> bool:
    """Whether a node is divided by something that was computed and cannot be negative: a variance, a temperature."""
    return operation(user) == "Div" and parent(user) is node and _cannot_be_negative(parent(user, 1))


def _cannot_be_negative(node: Any, depth: int = 4) -> bool:
    node = behind(node)
    kind = operation(node)
    if kind in _POSITIVE or (kind == "Pow" and setting(node, "exponent") == 2):
        return True
    if kind in ("Clamp", "ClampMin"):
        low = setting(node, "min")
        return isinstance(low, (int, float)) and low >= 0
    if not depth or kind not in ("Mul", "Add"):
        return False
    # What is added is not kept; a divisor is kept away from zero by it.
    others = [parent(node, at) is None and (kind == "Add" or _sign_of(scalar(node, name)) > 0) for at, name in _FACTORS]
    return all(other or _cannot_be_negative(parent(node, at), depth - 1) for at, other in enumerate(others))


def _sign_of(factor: float | None) -> int:
    return 0 if factor is None or not factor else (1 if factor > 0 else -1)


def _positive(exponent: Any) -> bool:
    return isinstance(exponent, (int, float)) and exponent > 0
