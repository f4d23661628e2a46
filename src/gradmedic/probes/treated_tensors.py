"""What a treatment knows of its tensors beside their gradients: names, and what their optimizer keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gradmedic.clip.spec import Spec, describe_tensors
from gradmedic.roster import Roster, live_models


def second_moment_of(optimizer: Any) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Return a function from a parameter to the second moment that its optimizer keeps of it, or None."""

    def read(parameter: torch.Tensor) -> torch.Tensor | None:
        state = getattr(optimizer, "state", {}).get(parameter)
        moment = state.get("exp_avg_sq") if isinstance(state, Mapping) else None
        return moment if isinstance(moment, torch.Tensor) and moment.shape == parameter.shape else None

    return read


def tensor_names(saved: Any) -> set[str]:
    """Return the names of the tensors in a saved state."""
    if not isinstance(saved, Mapping):
        return set()
    columns = saved.get("by_tensor", {})
    found = {str(name) for column in columns.values() if isinstance(column, Mapping) for name in column}
    return found.union(*(tensor_names(part) for part in saved.get("parts", {}).values()))


def everything(roster: Roster) -> Spec:
    """Return all tensors that are watched; where models are found one by one, those of all live models as well."""
    entries = [(entry.name, p) for entry in roster.parameters if (p := entry.reference()) is not None]
    models = dict(roster.models)
    if roster.discovering:  # a pattern may mean a model whose optimizer has not stepped yet
        known = {id(parameter) for _, parameter in entries}
        for at, model in enumerate(live_models()):
            models.setdefault(f"(live {at})", model)
            entries += [(name, p) for name, p in model.named_parameters() if id(p) not in known]
    names, parameters = [name for name, _ in entries], [parameter for _, parameter in entries]
    return describe_tensors(parameters, names, models)
