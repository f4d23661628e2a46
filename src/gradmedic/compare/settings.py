"""What was set differently: versions, command, settings, optimizers, the models' tree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradmedic.compare.comparison import Difference, Section
from gradmedic.facts import Facts

#: Of a run's description: what differs between any two runs, or is compared elsewhere.
_LEFT_OUT = frozenset({"pid", "created", "process", "attempt", "rank", "format", "models", "command", "limits"})
_SETTINGS = "settings"


def differences(
    meta: tuple[Mapping[str, Any], Mapping[str, Any]],
    facts: tuple[Facts | None, Facts | None],
    pairs: Sequence[tuple[str, str]],
) -> list[Difference]:
    """Return what was set differently in two runs.

    Args:
        meta: `Run.meta` of both.
        facts: what is known of their parameters and optimizers.
        pairs: names of the optimizers that correspond.
    """
    found = list(_command(*(entry.get("command") for entry in meta)))
    flat = [_flat(entry) for entry in meta]
    for key in dict.fromkeys((*flat[0], *flat[1])):
        section: Section = "settings" if key.startswith(f"{_SETTINGS}.") else "environment"
        found += _differing(section, key.removeprefix(f"{_SETTINGS}."), flat[0].get(key), flat[1].get(key))
    for names in pairs:
        found += _optimizer(names, facts)
    found += _models(*(entry.get("models") for entry in meta))
    order = ("command", "settings", "optimizer", "model", "environment")
    return sorted(found, key=lambda difference: order.index(difference.section))


def _flat(meta: Mapping[str, Any]) -> dict[str, str]:
    return {key: text for key, text in _entries(meta, "") if key.split(".")[0] not in _LEFT_OUT}


def _entries(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _entries(entry, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _differing(section: Section, key: str, a: str | None, b: str | None) -> list[Difference]:
    return [Difference(section, key, a, b)] if a != b else []


def _command(a: Any, b: Any) -> Iterator[Difference]:
    """Yield the options that differ, each by itself, and the rest of the command lines where it does."""
    left, right = (_options(command) for command in (a, b))
    for key in dict.fromkeys((*left, *right)):
        yield from _differing("command", key, left.get(key), right.get(key))


def _options(command: Any) -> dict[str, str]:
    """Return the options of a command line with their values, "on" where there is none; "" holds all other words."""
    words = [str(part) for part in command] if isinstance(command, list) else []
    found: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("-") and len(word) > 1:
            option, separator, value = word.partition("=")
            found.setdefault(option, []).extend([value] if separator else [])
            option = "" if separator else option
        else:
            found.setdefault(option, []).append(word)
            option = ""
    return {key: " ".join(values) or "on" for key, values in found.items()}


def _optimizer(names: tuple[str, str], facts: tuple[Facts | None, Facts | None]) -> list[Difference]:
    told = [fact.optimizers.get(name, {}) if fact is not None else {} for fact, name in zip(facts, names, strict=True)]
    label = names[0] if names[0] == names[1] else f"{names[0]} / {names[1]}"
    flat = [dict(_entries({**entry, **_by_group(entry)}, "")) for entry in told]
    found: list[Difference] = []
    for key in dict.fromkeys((*flat[0], *flat[1])):
        short = key.removeprefix("defaults.")
        found += _differing("optimizer", f"{label}: {short}", flat[0].get(key), flat[1].get(key))
    return found


def _by_group(entry: Mapping[str, Any]) -> dict[str, Any]:
    groups = entry.get("groups")
    return {"groups": {str(place): own for place, own in enumerate(groups) if own}} if groups else {}


def _models(a: Any, b: Any) -> list[Difference]:
    trees = [_tree(models) for models in (a, b)]
    found: list[Difference] = []
    for name in dict.fromkeys((*trees[0], *trees[1])):
        found += _differing("model", name, trees[0].get(name), trees[1].get(name))
    return found


def _tree(models: Any) -> dict[str, str]:
    """Return what each module is, in one line: its class, and its own parameters."""
    found: dict[str, str] = {}
    for module in models if isinstance(models, list) else ():
        if not isinstance(module, Mapping):
            continue
        parameters = module.get("parameters")
        held = parameters.items() if isinstance(parameters, Mapping) else ()
        parts = [str(module.get("class", "")), *(f"{key} {_parameter(value)}" for key, value in held)]
        found.setdefault(str(module.get("name", "")), ", ".join(parts))
    return found


def _parameter(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "lazy"
    shape = "x".join(str(size) for size in value.get("shape", ())) or "scalar"
    frozen = "" if value.get("trainable", True) else " frozen"
    return f"{shape} {value.get('dtype', '')}{frozen}"
