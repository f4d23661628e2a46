"""Checks of what users hand to `watch`, each with a sentence that says how to mend it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradmedic.clip.admission import admit, admit_in_backward, check_patterns
from gradmedic.clip.answers import check_first_state
from gradmedic.clip.chain import as_transform
from gradmedic.clip.spec import describe_tensors
from gradmedic.errors import InputError
from gradmedic.holdings import held_by
from gradmedic.names import walk_modules
from gradmedic.probes.rank_groups import RankGroups, groups_of
from gradmedic.record.budget import parse_budget
from gradmedic.roster import Roster
from gradmedic.schedule import every as make_schedule
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.sink_checks import check_seconds, check_sink
from gradmedic.stats.native import require_native
from gradmedic.types import Backend


def check_optimizers(optimizer: Any, roster: Roster) -> dict[str, Any] | None:
    """Return name -> optimizer, or None when every optimizer of the models is to be watched.

    Args:
        optimizer: an optimizer, a sequence or a mapping of them, or None.
        roster: the watched models.

    Raises:
        InputError: not an optimizer, or one that holds nothing of these models.
    """
    if optimizer is None:
        return None
    if isinstance(optimizer, Mapping):
        named = {str(key): value for key, value in optimizer.items()}
    elif isinstance(optimizer, Sequence):
        named = {str(place): value for place, value in enumerate(optimizer)}
    else:
        named = {"optimizer": optimizer}
    if not named:
        raise InputError(
            "optimizer: expected at least one, got an empty collection; pass None to watch every optimizer"
        )
    seen: dict[int, str] = {}
    for name, each in named.items():
        _check_optimizer(name, each)
        if id(each) in seen:
            raise InputError(
                f"optimizer: expected each once, got the same {type(each).__name__} as {seen[id(each)]!r} and "
                f"as {name!r}; leave one of them out"
            )
        seen[id(each)] = name
        _check_ownership(name, each, roster)
    return named


def _check_optimizer(name: str, optimizer: Any) -> None:
    kind = type(optimizer).__name__
    if not (hasattr(optimizer, "param_groups") and callable(getattr(optimizer, "step", None))):
        raise InputError(
            f"optimizer: expected a torch.optim.Optimizer, a sequence or a mapping of them, got {kind} for {name!r}; "
            "the order is gm.watch(model, optimizer)"
        )
    if not _is_heard(optimizer):
        raise InputError(
            f"optimizer: expected a torch.optim.Optimizer, or a wrapper that holds one, got {kind} for {name!r}, whose "
            "steps torch does not announce; leave the optimizer out, gm.watch(model), and call monitor.observe() after "
            "each of its steps"
        )


def _is_heard(optimizer: Any) -> bool:
    """Whether steps are announced by torch's hooks: the object's own, or those of an optimizer that it wraps."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return True
    held: list[Any] = []
    for value in getattr(optimizer, "__dict__", {}).values():
        held.extend(
            value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        )
    return any(isinstance(each, torch.optim.Optimizer) for each in held)


def _check_ownership(name: str, optimizer: Any, roster: Roster) -> None:
    held = held_by(optimizer)
    if not held or any(roster.lookup(parameter) is not None for parameter in held):
        return
    shapes = {tuple(p.shape) for entry in roster.parameters if (p := entry.reference()) is not None and not is_lazy(p)}
    if any(not is_lazy(parameter) and tuple(parameter.shape) in shapes for parameter in held):
        return  # a copy of the model was made after the optimizer: that is finding GM105, and no error of this call
    raise InputError(
        f"optimizer {name!r}: none of its {len(held)} tensors belongs to the model; pass the optimizer that was made "
        "from this model's parameters, or optimizer=None to watch whichever one steps them"
    )


def check_order(model: Any, optimizer: Any) -> None:
    """Raise InputError if model and optimizer have changed places, or if there is no model."""
    swapped = isinstance(optimizer, nn.Module) and not isinstance(model, nn.Module)
    if swapped or isinstance(model, torch.optim.Optimizer):
        raise InputError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}, and {type(optimizer).__name__} for the "
            "optimizer: the two are swapped; pass the model first, gm.watch(model, optimizer)"
        )
    if model is None:
        raise InputError("model: expected the torch.nn.Module that you train, got None; call gm.watch(model)")


def check_settings(*, rules: Any, strict: Any, every: Any, backend: Any, budget: Any, modules_every: Any) -> None:
    """Raise InputError for the first setting that is none of those that its argument allows."""
    check_rules(rules)
    if not isinstance(strict, bool):
        raise InputError(f"strict: expected True or False, got {strict!r}; leave it out unless you test gradmedic")
    make_schedule(every)
    if isinstance(modules_every, bool) or not isinstance(modules_every, int) or modules_every < 1:
        raise InputError(f"modules_every: expected a positive number of steps, got {modules_every!r}; leave it out")
    check_backend(backend)
    parse_budget(budget)


def check_rules(rules: Any) -> None:
    """Raise InputError unless this is "default" or a sequence of codes and rule objects."""
    if rules == "default":
        return
    listed = [] if isinstance(rules, str) or not isinstance(rules, Sequence) else list(rules)
    odd = [each for each in listed if not isinstance(each, str) and not callable(getattr(each, "evaluate", None))]
    if odd or (not listed and not isinstance(rules, (list, tuple))):
        raise InputError(
            f'rules: expected "default", or a list of codes and rule objects such as ["GM201", "GM302"], got '
            f"{(odd or [rules])[0]!r}; leave it out for all rules"
        )


def check_trainable(roster: Roster) -> None:
    """Raise InputError if the models have nothing that could be trained."""
    held = [parameter for entry in roster.parameters if (parameter := entry.reference()) is not None]
    if not any(is_lazy(parameter) or parameter.requires_grad for parameter in held):
        raise InputError(
            f"model: it has no trainable parameter (of {len(held)}, none requires a gradient); set requires_grad=True "
            "on what you train, or pass the model that you train"
        )


def check_limits(limits: Any, models: Mapping[str, nn.Module], roster: Roster) -> None:
    """Raise InputError for a limit's pattern that matches no parameter and no module."""
    if isinstance(limits, Mapping):
        names = {entry.name for entry in roster.parameters}
        names |= {name for prefix, model in models.items() for name, _ in walk_modules(model, prefix)}
        for pattern in limits:
            check_pattern("limits", str(pattern), names)


def check_modules(modules: Any, models: Mapping[str, nn.Module] | None) -> str | list[str] | None:
    """Return which modules to probe: "auto", patterns, or None.

    Args:
        modules: what was given.
        models: the models whose modules the patterns must match; None when they are not known yet.

    Raises:
        InputError: it is none of these, or a pattern matches no module.
    """
    if modules is None or modules == "auto":
        return modules  # type: ignore[no-any-return]
    given = [modules] if isinstance(modules, str) else modules
    if not isinstance(given, Sequence) or not all(isinstance(each, str) and each for each in given):
        raise InputError(f'modules: expected "auto", None or patterns such as ["encoder.*"], got {modules!r}')
    names = {name for prefix, model in (models or {}).items() for name, _ in walk_modules(model, prefix)}
    for pattern in given if models is not None else ():
        check_pattern("modules", pattern, names)
    return list(given)


def check_pattern(argument: str, pattern: str, names: Iterable[str]) -> None:
    """Raise InputError if a pattern matches none of the names; the message lists near ones."""
    known = sorted(names)
    if any(fnmatchcase(name, pattern) for name in known):
        return
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.3) or [name for name in known if name][:3]
    raise InputError(
        f"{argument}: the pattern {pattern!r} matches no parameter and no module; near names: "
        f"{', '.join(near) or '(none)'}"
    )


def check_callables(on_finding: Any, sinks: Any) -> None:
    """Raise InputError for a callback or a sink that lacks what will be called."""
    if on_finding is not None and not callable(on_finding):
        raise InputError(f"on_finding: expected a function of one finding, got {on_finding!r}")
    if not isinstance(sinks, Sequence):
        raise InputError(f"sinks: expected a list of sinks, got {sinks!r}")
    for sink in sinks:
        check_sink(sink, "sinks")
        if isinstance(sink, BaseSink):
            check_seconds(sink.patience, f"sinks: patience of {type(sink).__name__}")


def check_transform(transform: Any, optimizers: Mapping[str, Any] | None, roster: Roster) -> Any:
    """Return the transform (a number stands for the joint norm), once it is known to fit what it is to treat.

    Raises:
        InputError: it is none, a pattern of it matches nothing, or it cannot treat one of the optimizers.
    """
    if transform is None:
        return None
    chosen = as_transform(transform, "transform")
    entries = [entry for entry in roster.parameters if (p := entry.reference()) is not None and not is_lazy(p)]
    held = [p for entry in entries if (p := entry.reference()) is not None]
    lazy = len(entries) < len(roster.parameters)
    if not lazy:  # what is not there yet cannot be compared with a pattern; the first step will
        spec = describe_tensors(held, [entry.name for entry in entries], roster.models)
        check_patterns(chosen, spec)
        check_first_state(chosen, chosen.init(spec))
    given = list((optimizers or {}).values())
    for optimizer in given:
        admit(chosen, optimizer)
    if len(given) > 1 and any(getattr(p, "_post_accumulate_grad_hooks", None) for p in held):
        admit_in_backward(chosen)
    return chosen


def check_groups(groups: Any, roster: Roster) -> RankGroups | None:
    """Return what the user says of tensors whose likes lie on other ranks, once it is known to fit the models.

    Raises:
        InputError: it is no mapping of patterns to process groups, this rank is not in one, a pattern matches nothing,
            or two of them claim one tensor.
    """
    if groups is None and (groups := groups_of(roster.models)) is None:
        return None
    declared = RankGroups(groups)
    held = [(entry.name, p) for entry in roster.parameters if (p := entry.reference()) is not None and not is_lazy(p)]
    declared.check(describe_tensors([p for _, p in held], [name for name, _ in held], roster.models))
    return declared


def check_record(record: Any) -> None:
    """Raise InputError for what cannot be the path of a run folder."""
    if record is None:
        return
    if not isinstance(record, (str, os.PathLike)) or not str(record).strip() or "\0" in str(record):
        raise InputError(f"record: expected the path of a run folder to create, or None, got {record!r}")


def check_overwrite(overwrite: Any) -> None:
    """Raise InputError unless this is a bool: a word such as "no" would replace a run."""
    if not isinstance(overwrite, bool):
        raise InputError(f"overwrite: expected True or False, got {overwrite!r}; leave it out to keep an earlier run")


def check_backend(backend: str) -> Backend:
    """Return the backend's name, or raise InputError with the list, or with how to get what is missing."""
    if backend not in get_args(Backend):
        known = ", ".join(get_args(Backend))
        raise InputError(f"backend: expected one of {known}, got {backend!r}; leave it out for the fastest that fits")
    if backend == "native":
        require_native()
    return backend  # type: ignore[return-value]
