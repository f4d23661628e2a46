"""What the facts say of an optimizer's settings: its betas, epsilon, weight decay, and what kind it is.

Parameter groups have settings of their own: what is asked of a tensor is answered by its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View
from gradmedic.facts import settings_of_groups

#: Optimizers that divide by the root of a running mean of squared gradients.
_ADAM_KIN = ("adam", "lamb", "rmsprop")
#: Adam's relatives whose `eps` or second moment means something else.
_NOT_ELEMENTWISE = ("adamax", "mini", "adam8bit", "sparse")
#: Optimizers that shrink the weights by `lr * weight_decay` beside the step, not through the gradient.
_DECOUPLED = ("adamw", "lion", "muon", "lamb", "sgdw", "nadamw")


def groups_of(view: View) -> list[dict[str, Any]]:
    """Return the settings of each parameter group of the view's optimizer; all defaults where groups are not known."""
    entry = view.facts.optimizers.get(view.frame.optimizer, {}) if view.facts is not None else {}
    return settings_of_groups(entry)


def any_group_has(view: View, key: str) -> bool:
    """Whether a setting is on in one of the groups."""
    return any(group.get(key) for group in groups_of(view))


def group_places(view: View) -> npt.NDArray[np.int64]:
    """Return the place of the parameter group of each tensor of the layout [P]; 0 where it is not known."""
    cache = view.layout.cache
    if "groups" not in cache:  # a layout lasts as long as the facts that it was made of
        places = [fact.group if fact is not None else None for fact in view.layout.facts]
        cache["groups"] = np.array([place or 0 for place in places], dtype=np.int64)
    found: npt.NDArray[np.int64] = cache["groups"]
    return found


def numbers_of(view: View, key: str) -> Floats:
    """Return a setting of each tensor of the layout, that of its group [P]; NaN where it is no plain number."""
    return _spread(view, ("setting", key), [_number(group.get(key)) for group in groups_of(view)])


def rates_of(view: View) -> Floats:
    """Return the present learning rate of each tensor of the layout, that of its group [P]; NaN where not known."""
    rates, places = view.frame.lrs, group_places(view)
    if len(rates) > 1 and len(rates) == len(groups_of(view)):
        return np.array(rates)[np.minimum(places, len(rates) - 1)]
    return np.full(len(places), np.nan if view.frame.lr is None else view.frame.lr)


def second_moment_betas(view: View) -> Floats | None:
    """Return the decay of the running mean of squared gradients of each tensor [P]: Adam's `betas[1]`, RMSprop's
    `alpha`; NaN where it is not known, None where it is of none.
    """
    if not is_adam_kin(view):
        return None
    found = _spread(view, ("setting", "beta"), [_second_beta(group) for group in groups_of(view)])
    return found if np.isfinite(found).any() else None


def _second_beta(group: Mapping[str, Any]) -> float:
    betas = group.get("betas")
    beta = _number(betas[1] if isinstance(betas, (list, tuple)) and len(betas) >= 2 else group.get("alpha"))
    return beta if 0 < beta < 1 else np.nan


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else np.nan


def _spread(view: View, key: Any, values: list[float]) -> Floats:
    cache = view.layout.cache
    if key not in cache:
        cache[key] = np.array(values)[np.minimum(group_places(view), len(values) - 1)]
    found: Floats = cache[key]
    return found


def is_adam_kin(view: View) -> bool:
    """Whether steps are divided, element by element, by the root of a running mean of squared gradients."""
    name = view.optimizer_class.lower()
    return any(word in name for word in _ADAM_KIN) and not any(word in name for word in _NOT_ELEMENTWISE)


def decays_beside(view: View) -> bool:
    """Whether weight decay is decoupled from the gradient (AdamW), rather than added to it (SGD, Adam)."""
    if any_group_has(view, "decoupled_weight_decay"):
        return True
    return any(word in view.optimizer_class.lower() for word in _DECOUPLED)
