"""What parameters and modules are called.

Names are those of `named_parameters()`, made stable: the components that real wrappers add (`torch.compile`'s
`_orig_mod`, DDP's `module`, FSDP1's `_fsdp_wrapped_module`, activation checkpointing's `_checkpoint_wrapped_module`)
are left out, while a user's own attribute of such a name stays. A tied weight has one name and aliases.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

#: Attribute that a wrapper class puts between itself and the wrapped module. Looked up by class name, so that no
#: optional part of torch is imported just to compare types.
_WRAPPER_ATTRIBUTES: dict[str, str] = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}

#: Attributes of other libraries' classes under which parameters lie that have better names: Keras keeps its own path
#: ("dense/kernel") as the key below `_torch_params`, Fabric wraps the user's model.
_HIDDEN_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "keras.": ("_functional", "_torch_params"),
    "lightning.": ("_forward_module",),
    "lightning_fabric.": ("_forward_module",),
}
#: The same model once more.
_SECOND_NAMES: dict[str, str] = {"_FabricModule": "_original_module"}

_MAX_NAMES = 8


@dataclass(slots=True)
class NamedParameter:
    """A parameter's place in the watched models; the parameter itself is held weakly."""

    name: str
    module: str
    kind: str
    reference: weakref.ref[torch.Tensor]
    aliases: list[str] = field(default_factory=list)


def is_wrapper_attribute(module: nn.Module, attribute: str) -> bool:
    """Whether `module` is a wrapper that put its wrapped module under `attribute`."""
    return any(
        _WRAPPER_ATTRIBUTES.get(base.__name__) == attribute and base.__module__.startswith("torch.")
        for base in type(module).__mro__
    )


def _is_hidden(module: nn.Module, attribute: str) -> bool:
    """Whether an attribute is left out of names."""
    if is_wrapper_attribute(module, attribute):
        return True
    if not attribute.startswith("_"):  # as nearly every name of a user
        return False
    return any(
        attribute in hidden and base.__module__.startswith(library)
        for base in type(module).__mro__
        for library, hidden in _HIDDEN_ATTRIBUTES.items()
    )


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside any wrappers (compile, DDP, FSDP1, checkpoint)."""
    while True:
        for attribute, inner in module._modules.items():  # scripted modules have no iterator over names
            if inner is not None and is_wrapper_attribute(module, attribute):
                module = inner
                break
        else:
            return module


def join(prefix: str, name: str) -> str:
    """Join two parts of a qualified name, either of which may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def walk_modules(root: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (stable name, module) for every module, shared ones under each of their names, without recursion limits.

    A module with more names than 8 is yielded under its first 8: where blocks that are used twice hold blocks that are
    used twice, names double with each level.
    """
    stack: list[tuple[str, nn.Module, bool]] = [(prefix, root, False)]
    above: set[int] = set()
    visits: dict[int, int] = {}
    while stack:
        name, module, leaving = stack.pop()
        key = id(module)
        if leaving:
            above.discard(key)
            continue
        if key in above or visits.get(key, 0) >= _MAX_NAMES:  # in a cycle never descend into an ancestor again
            continue
        visits[key] = visits.get(key, 0) + 1
        above.add(key)
        stack.append((name, module, True))
        yield name, module
        children = [
            (name if _is_hidden(module, attribute) else join(name, attribute), child, False)
            for attribute, child in module._modules.items()
            if child is not None and _SECOND_NAMES.get(type(module).__name__) != attribute
        ]
        stack.extend(reversed(children))


def name_parameters(models: Mapping[str, nn.Module]) -> dict[int, NamedParameter]:
    """Name every parameter of the models, by the parameter's `id`.

    Args:
        models: prefix -> model; the prefix is empty for a single model.

    Returns:
        id(parameter) -> its name, first come first named; further names of the same tensor are aliases. Two different
        parameters never share a name: a second one that would is numbered (`weight#2`).
    """
    found: dict[int, NamedParameter] = {}
    taken: dict[str, int] = {}
    for prefix, model in models.items():
        for module_name, module in walk_modules(model, prefix):
            for key, parameter in module._parameters.items():
                if parameter is None:
                    continue
                name = join(module_name, key)
                known = found.get(id(parameter))
                if known is not None:
                    if name != known.name and name not in known.aliases:
                        known.aliases.append(name)
                    continue
                owner = taken.setdefault(name, id(parameter))
                if owner != id(parameter):
                    name = _numbered(name, taken, id(parameter))
                found[id(parameter)] = NamedParameter(name, module_name, type(module).__name__, weakref.ref(parameter))
    return found


def _numbered(name: str, taken: dict[str, int], owner: int) -> str:
    number = 2
    while taken.setdefault(f"{name}#{number}", owner) != owner:
        number += 1
    return f"{name}#{number}"


def variable_name(value: object, namespace: Mapping[str, object]) -> str | None:
    """Return the name of the variable that is bound to `value`, if the namespace has one."""
    for name, bound in list(namespace.items()):
        if bound is value and not name.startswith("_"):
            return name
    return None


def unique(name: str, taken: Iterable[str]) -> str:
    """Return `name`, or `name_2`, `name_3`, … if it is taken."""
    used = set(taken)
    if name not in used:
        return name
    number = 2
    while f"{name}_{number}" in used:
        number += 1
    return f"{name}_{number}"
