"""Who is being watched: the models, their parameters' names, and how to find them in an unmodified script.

Models are held weakly. Names are looked up by identity at every step, so that parameters that were added, replaced or
materialised since are picked up, and those that are gone are forgotten.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gradmedic.errors import InputError
from gradmedic.names import NamedParameter, name_parameters, unique, unwrap, variable_name

_MAX_MISSES = 3

Namespace = Callable[[], Mapping[str, Any]]


class Roster:
    """The watched models and the names of their parameters.

    Args:
        models: a module, a mapping of names to modules, or None to find the models that own the parameters which
            optimizers step (`gradmedic run`).
        namespace: returns the script's global variables, whose names are used for models and bare tensors found.
    """

    def __init__(
        self, models: nn.Module | Mapping[str, nn.Module] | None = None, namespace: Namespace | None = None
    ) -> None:
        self.discovering = models is None
        self._namespace = namespace or dict
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self._by_id: dict[int, NamedParameter] = {}
        self._bare: dict[int, NamedParameter] = {}
        self._misses = 0
        self._looks = 0
        self._foreign: dict[int, weakref.ref[torch.Tensor]] = {}
        if models is not None:
            self._models = {key: weakref.ref(model) for key, model in check_models(models).items()}
            self.refresh()

    @classmethod
    def without_models(cls) -> Roster:
        """Return a roster of no model: parameters are then known by their place only."""
        roster = cls()
        roster.discovering = False
        return roster

    @property
    def models(self) -> dict[str, nn.Module]:
        """The watched models that are still alive, by the prefix of their parameters' names."""
        held = ((prefix, reference()) for prefix, reference in self._models.items())
        return {prefix: model for prefix, model in held if model is not None}

    @property
    def parameters(self) -> list[NamedParameter]:
        """Every named parameter that is still alive."""
        known = [*self._by_id.values(), *self._bare.values()]
        return [entry for entry in known if entry.reference() is not None]

    @property
    def gone(self) -> bool:
        """Whether nothing is left of what was to be watched."""
        return not self.discovering and not self.models and not self.parameters

    def refresh(self) -> None:
        """Name all parameters anew; call when a parameter came, went or was replaced."""
        found = name_parameters(self.models)
        if len(self.models) < len(self._models):
            # A container that was made only to be watched is gone, and its parts live on: their names stay.
            alive = {key: entry for key, entry in self._by_id.items() if entry.reference() is not None}
            found = {**alive, **found}
        self._by_id = found
        self._foreign.clear()

    def lookup(self, parameter: torch.Tensor) -> NamedParameter | None:
        """Return a parameter's entry, or None if no watched model has it."""
        entry = self._by_id.get(id(parameter)) or self._bare.get(id(parameter))
        # An id may be used again once its tensor is gone: the reference tells.
        return entry if entry is not None and entry.reference() is parameter else None

    def is_bare(self, parameter: torch.Tensor) -> bool:
        """Whether a tensor is named although no module has it."""
        return self.lookup(parameter) is not None and id(parameter) not in self._by_id

    def name_of(self, parameter: torch.Tensor) -> tuple[str, str] | None:
        """Return (parameter name, module name), or None."""
        entry = self.lookup(parameter)
        return (entry.name, entry.module) if entry is not None else None

    def identify(self, parameters: Sequence[torch.Tensor]) -> list[NamedParameter | None]:
        """Return the entries of the parameters; names them anew if there are unknown ones."""
        entries = [self.lookup(parameter) for parameter in parameters]
        unknown = [
            parameter
            for parameter, entry in zip(parameters, entries, strict=True)
            if entry is None and not self._known_foreign(parameter)
        ]
        if not unknown:
            return entries
        if self.discovering:
            self._discover(unknown)
        else:
            self.refresh()
        entries = [self.lookup(parameter) for parameter in parameters]
        for parameter, entry in zip(parameters, entries, strict=True):
            if entry is None:
                self._foreign[id(parameter)] = weakref.ref(parameter)
        return entries

    def _known_foreign(self, parameter: torch.Tensor) -> bool:
        reference = self._foreign.get(id(parameter))
        return reference is not None and reference() is parameter

    def watches_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of the tensors is watched; when the models are being found, every tensor is."""
        return self.discovering or any(entry is not None for entry in self.identify(list(parameters)))

    def _discover(self, unknown: Sequence[torch.Tensor]) -> None:
        # Looking through all live objects is slow; a script that makes new bare tensors at every step gets few looks.
        self._looks += 1
        if self._misses < _MAX_MISSES or self._looks % 64 == 0:
            models, alone = find_models(unknown, exclude=self.models.values())
            self._misses = 0 if models else self._misses + 1
            for model in models:
                bound = variable_name(model, self._namespace())
                name = bound or type(unwrap(model)).__name__
                # A single model needs no prefix; names that were given once never change.
                prefix = "" if alone and not self._models else unique(name, self._models)
                self._models[prefix] = weakref.ref(model)
        self._by_id = name_parameters(self.models)
        for parameter in unknown:
            if self.lookup(parameter) is None:
                self._name_bare(parameter)

    def _name_bare(self, parameter: torch.Tensor) -> None:
        taken = {entry.name for entry in self._bare.values() if entry.reference() is not None}
        bound = variable_name(parameter, self._namespace()) or f"tensor{len(taken)}"
        name = unique(bound, taken)
        self._bare = {key: entry for key, entry in self._bare.items() if entry.reference() is not None}
        self._bare[id(parameter)] = NamedParameter(name, "", "", weakref.ref(parameter))


def check_models(models: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return prefix -> module; a single module has the empty prefix.

    Raises:
        InputError: if something else than modules came.
    """
    if isinstance(models, nn.Module):
        return {"": models}
    if isinstance(models, Mapping) and models:
        for key, model in models.items():
            if not isinstance(key, str) or not isinstance(model, nn.Module):
                raise InputError(
                    f"model: expected a mapping of names to torch.nn.Module, got {key!r}: {type(model).__name__}"
                )
        return dict(models)
    raise InputError(
        f"model: expected a torch.nn.Module or a mapping of names to modules, got {type(models).__name__}; "
        "pass the model that you train, e.g. gm.watch(model, optimizer)"
    )


def find_models(parameters: Iterable[torch.Tensor], exclude: Iterable[nn.Module] = ()) -> tuple[list[nn.Module], bool]:
    """Find the outermost live modules that own any of the parameters.

    Looks through the objects that Python's garbage collector tracks, which costs tens of milliseconds; it is done when
    an unmodified script steps its first optimizer. `type(x)` is asked instead of `isinstance`, which runs code of
    lazy proxies.

    Args:
        parameters: tensors whose owners are wanted.
        exclude: modules known already.

    Returns:
        The roots, those with more of the parameters first (a root that adds none is left out); and whether no other
        live root has trainable parameters.
    """
    wanted = {id(parameter) for parameter in parameters}
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    children = {id(child) for module in modules for child in _children(module)}
    known = {id(each) for each in exclude}
    owned: list[tuple[nn.Module, set[int]]] = []
    others = 0
    for module in modules:
        if id(module) in children or id(module) in known or "_modules" not in module.__dict__:
            continue
        held = list(module.parameters())
        mine = wanted & {id(parameter) for parameter in held}
        if mine:
            owned.append((module, mine))
        else:
            others += any(parameter.requires_grad for parameter in held)
    owned.sort(key=lambda pair: -len(pair[1]))
    chosen: list[nn.Module] = []
    for module, mine in owned:
        if mine & wanted:
            chosen.append(module)
            wanted -= mine
    return chosen, others == 0 and len(chosen) == 1


def live_models() -> list[nn.Module]:
    """Return the outermost live modules that have parameters; looks through all live objects, as `find_models`."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and "_modules" in each.__dict__]
    children = {id(child) for module in modules for child in _children(module)}
    return [each for each in modules if id(each) not in children and next(each.parameters(), None) is not None]


def _children(module: nn.Module) -> list[nn.Module]:
    held = module.__dict__.get("_modules") or {}
    return [child for child in held.values() if child is not None]
