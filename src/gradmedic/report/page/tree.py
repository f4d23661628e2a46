"""The module tree, with what each part holds and how it fares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradmedic.report.views.order import State, TensorRow

#: A module is in the gravest state of the tensors below it.
_GRAVEST: tuple[State, ...] = ("non-finite", "zero", "no gradient", "unused")


def module_tree(meta: Mapping[str, Any], rows: Sequence[TensorRow], trouble: Iterable[float]) -> list[dict[str, Any]]:
    """Return the modules of a run in the order of their definition.

    Args:
        meta: of the run; its "models" describe the modules, and where they do not, the tensors' names do.
        rows, trouble: tensors, and how far each is from healthy.

    Returns:
        One mapping for each module: "name", "kind", "depth" (0 for the outermost), "parameters" (numbers in it and
        below), "shapes" (of its own tensors), "state" and "trouble" (the worst of its own tensors and those below).
    """
    modules = _described(meta) or _guessed(rows)
    below: dict[str, list[int]] = {name: [] for name in modules}
    own: dict[str, list[int]] = {name: [] for name in modules}
    for at, row in enumerate(rows):
        module = row.module if row.module in modules else row.name.rpartition(".")[0]
        if module in own:
            own[module].append(at)
        for name in _and_above(module):
            if name in below:
                below[name].append(at)
    amounts = list(trouble)
    return [
        {
            "name": name,
            "kind": kind,
            "depth": sum(1 for above in _and_above(name) if above != name and above in modules),
            "parameters": sum(rows[at].numel for at in below[name]),
            "shapes": [list(rows[at].shape) for at in own[name]],
            "state": _state([rows[at].state for at in below[name]]),
            "trouble": round(max((float(amounts[at]) for at in below[name]), default=0.0), 4),
        }
        for name, kind in modules.items()
    ]


def _described(meta: Mapping[str, Any]) -> dict[str, str]:
    models = meta.get("models")
    entries = [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    return {str(entry.get("name", "")): str(entry.get("class", "")) for entry in entries}


def _guessed(rows: Sequence[TensorRow]) -> dict[str, str]:
    """Return the modules that the tensors' names speak of."""
    kinds = {row.module: row.kind for row in rows}
    names: dict[str, None] = {}
    for row in rows:
        for name in reversed(_and_above(row.module or row.name.rpartition(".")[0])):
            names.setdefault(name)
    return {name: kinds.get(name, "") for name in names}


def _and_above(name: str) -> list[str]:
    """Return a module's name and those of the modules that hold it, innermost first: "a.b", "a", ""."""
    parts = name.split(".") if name else []
    return [".".join(parts[:stop]) for stop in range(len(parts), -1, -1)]


def _state(states: Sequence[State]) -> str:
    for state in _GRAVEST:
        if state in states:
            return state
    same = set(states)
    return same.pop() if len(same) == 1 else "ok"
