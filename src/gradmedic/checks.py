"""Checks of what users hand to `watch`, each with a sentence that says how to mend it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

from torch import nn
from torch.nn.parameter import is_lazy

from gradmedic.errors import InputError
from gradmedic.holdings import held_by
from gradmedic.names import walk_modules
from gradmedic.roster import Roster
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
    for name, each in named.items():
        if not (hasattr(each, "param_groups") and callable(getattr(each, "step", None))):
            raise InputError(
                f"optimizer: expected a torch.optim.Optimizer, a sequence or a mapping of them, got "
                f"{type(each).__name__} for {name!r}; the order is gm.watch(model, optimizer)"
            )
        _check_ownership(name, each, roster)
    return named


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


def check_pattern(argument: str, pattern: str, names: Iterable[str]) -> None:
    """Raise InputError if a pattern matches none of the names; the message lists near ones."""
    known = sorted(names)
    if any(fnmatchcase(name, pattern) for name in known):
        return
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.3) or known[:3]
    raise InputError(
        f"{argument}: the pattern {pattern!r} matches no parameter and no module; near names: "
        f"{', '.join(near) or '(none)'}"
    )


def check_callables(on_finding: Any, transform: Any, sinks: Any) -> None:
    """Raise InputError for a callback, a transform or a sink that lacks what will be called."""
    if on_finding is not None and not callable(on_finding):
        raise InputError(f"on_finding: expected a function of one finding, got {on_finding!r}")
    if transform is not None and not (hasattr(transform, "init") and hasattr(transform, "update")):
        raise InputError(f"transform: expected a transform such as gm.clip.norm(1.0), got {transform!r}")
    if not isinstance(sinks, Sequence):
        raise InputError(f"sinks: expected a list of sinks, got {sinks!r}")
    for sink in sinks:
        lacking = [name for name in ("emit", "emit_finding", "close") if not callable(getattr(sink, name, None))]
        if lacking:
            raise InputError(
                f"sinks: {type(sink).__name__} lacks {', '.join(lacking)}; a sink has emit(frame), "
                "emit_finding(finding) and close()"
            )


def check_record(record: Any) -> None:
    """Raise InputError for what cannot be the path of a run folder."""
    if record is None:
        return
    if not isinstance(record, (str, os.PathLike)) or not str(record).strip() or "\0" in str(record):
        raise InputError(f"record: expected the path of a run folder to create, or None, got {record!r}")


def check_backend(backend: str) -> Backend:
    """Return the backend's name, or raise InputError with the list."""
    if backend not in get_args(Backend):
        raise InputError(f"backend: expected one of {', '.join(get_args(Backend))}, got {backend!r}")
    return backend  # type: ignore[return-value]
