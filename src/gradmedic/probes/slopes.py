"""Where a derivative is not finite although the value is: sqrt at 0, acos at 1, a division that is masked out later.

A loss scale cannot mend such a place: whatever arrives there, zero included, leaves as NaN or infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Saved = Mapping[str, torch.Tensor]

#: Derivative of an operation, from what its node has saved, by the node's name without "Backward" and its number.
_SLOPES: dict[str, Callable[[Saved], torch.Tensor]] = {
    "Sqrt": lambda saved: 0.5 / saved["result"],
    "Rsqrt": lambda saved: saved["result"] ** 3,
    "Log": lambda saved: 1 / saved["self"],
    "Log2": lambda saved: 1 / saved["self"],
    "Log10": lambda saved: 1 / saved["self"],
    "Log1P": lambda saved: 1 / (1 + saved["self"]),
    "Div": lambda saved: 1 / saved["other"],
    "Reciprocal": lambda saved: saved["result"] ** 2,
    "Acos": lambda saved: (1 - saved["self"] ** 2).rsqrt(),
    "Asin": lambda saved: (1 - saved["self"] ** 2).rsqrt(),
    "Acosh": lambda saved: (saved["self"] ** 2 - 1).rsqrt(),
    "Atanh": lambda saved: 1 / (1 - saved["self"] ** 2),
    "Exp": lambda saved: saved["result"],
}
#: Operations whose own derivative picks instead of multiplying: they keep out what comes back from masked elements.
_FILTERS = ("Relu", "Threshold", "Where", "MaskedFill", "MaskedSelect", "MaskedScatter", "Index", "MaxPool")


def may_be_steep(node: Any) -> bool:
    """Whether a node's operation has a derivative that can be infinite at a finite value."""
    return _operation(node) in _SLOPES or _is_power(node)


def steep_elements(node: Any, saved: Saved) -> torch.Tensor | None:
    """Return where an operation's derivative is not finite, as a mask; None where nothing can be said.

    Args:
        node: a node of the autograd graph.
        saved: what it has saved, by name without "_saved_".

    Returns:
        A bool tensor in the shape of what was saved. None also for elements that a mask behind the node keeps out
        (`relu(x).sqrt()`): their derivative goes nowhere.
    """
    if any(parent is not None and parent.name().startswith(_FILTERS) for parent, _ in node.next_functions):
        return None
    # In float64, where the reciprocal of the smallest half is finite: what remains infinite is so at any scale.
    wide = {key: value.double() for key, value in saved.items() if not value.is_complex()}
    try:
        slope = _power_slope(node, wide) if _is_power(node) else _SLOPES[_operation(node)](wide)
    except KeyError:  # torch saves what the backward pass needs: for a constant divisor, nothing
        return None
    return ~torch.isfinite(slope)


def _operation(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def _is_power(node: Any) -> bool:
    return bool(node.name() == "PowBackward0")  # a tensor to a constant power


def _power_slope(node: Any, saved: Saved) -> torch.Tensor:
    exponent = float(node._saved_exponent)
    return exponent * saved["self"] ** (exponent - 1)
