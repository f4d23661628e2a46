"""What the facts say of an optimizer's settings: its betas, epsilon, weight decay, and what kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradmedic.diagnosis.view import View

#: Optimizers that divide by the root of a running mean of squared gradients.
_ADAM_KIN = ("adam", "lamb", "rmsprop")
#: Adam's relatives whose `eps` or second moment means something else.
_NOT_ELEMENTWISE = ("adamax", "mini", "adam8bit", "sparse")
#: Optimizers that shrink the weights by `lr * weight_decay` beside the step, not through the gradient.
_DECOUPLED = ("adamw", "lion", "muon", "lamb", "sgdw", "nadamw")


def defaults_of(view: View) -> Mapping[str, Any]:
    """Return the defaults of the view's optimizer; empty when they are not known. Groups may differ from them."""
    entry = view.facts.optimizers.get(view.frame.optimizer, {}) if view.facts is not None else {}
    found: Mapping[str, Any] = entry.get("defaults") or {}
    return found


def number_of(view: View, key: str) -> float | None:
    """Return a setting that is a plain number, None when it is not there or is something else."""
    value = defaults_of(view).get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_adam_kin(view: View) -> bool:
    """Whether steps are divided, element by element, by the root of a running mean of squared gradients."""
    name = view.optimizer_class.lower()
    return any(word in name for word in _ADAM_KIN) and not any(word in name for word in _NOT_ELEMENTWISE)


def second_moment_beta(view: View) -> float | None:
    """Return the decay of the running mean of squared gradients: Adam's `betas[1]`, RMSprop's `alpha`."""
    if not is_adam_kin(view):
        return None
    betas = defaults_of(view).get("betas")
    if isinstance(betas, (list, tuple)) and len(betas) >= 2 and isinstance(betas[1], (int, float)):
        beta = float(betas[1])
    else:
        beta = number_of(view, "alpha") or 0.0
    return beta if 0 < beta < 1 else None


def decays_beside(view: View) -> bool:
    """Whether weight decay is decoupled from the gradient (AdamW), rather than added to it (SGD, Adam)."""
    if defaults_of(view).get("decoupled_weight_decay"):
        return True
    return any(word in view.optimizer_class.lower() for word in _DECOUPLED)
