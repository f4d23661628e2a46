"""What a transform is told about the tensors before the first step: names, shapes, kinds of modules, output units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from gradmedic.names import walk_modules

#: Kinds that are no class of their own; each is told by the names of a module's classes.
ROLES = ("attention", "embedding", "norm", "RNN", "output")


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """A module that holds a tensor, directly or further up.

    Attributes:
        name: its qualified name, "" for the root.
        kinds: names of its classes up to `nn.Module`, its own first, and its roles (see `ROLES`).
    """

    name: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor.

    Attributes:
        name: its qualified name.
        shape: its shape.
        unit_dim: axis along which its output units lie; None when the whole tensor is one unit.
        modules: the modules that hold it, the root first; empty when it is in none.
    """

    name: str
    shape: tuple[int, ...] = ()
    unit_dim: int | None = None
    modules: tuple[ModuleSpec, ...] = ()

    @property
    def kind(self) -> str:
        """Class name of the module that owns it, "" when there is none."""
        return self.modules[-1].kinds[0] if self.modules else ""


@dataclass(frozen=True)
class Spec:
    """All tensors that a transform decides about, N, and where its vectors live."""

    tensors: tuple[TensorSpec, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        return tuple(tensor.name for tensor in self.tensors)

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What transforms have worked out about these tensors, by keys of their own, so that it is done only once."""
        return {}

    def __len__(self) -> int:
        return len(self.tensors)

    @classmethod
    def of_names(cls, names: Sequence[str]) -> Spec:
        """Return a specification of which nothing but the names is known."""
        return cls(tuple(TensorSpec(name) for name in names))


def describe_tensors(
    parameters: Sequence[torch.Tensor],
    names: Sequence[str],
    models: Mapping[str, nn.Module],
    device: torch.device | None = None,
) -> Spec:
    """Return what is to be known of the parameters.

    Args:
        parameters: the tensors, N.
        names: their names.
        models: prefix -> model that holds them; those that are in none have no modules.
        device: where vectors are to live; that of the first parameter which is not on the CPU by default.
    """
    owners = _owners(models)
    devices = [parameter.device for parameter in parameters if not parameter.is_meta]
    devices = devices or [parameter.device for parameter in parameters]
    # Not the host where there is a device: vectors there would have to be waited for.
    there = next((each for each in devices if each.type != "cpu"), torch.device("cpu"))
    home = device or there
    return Spec(
        tuple(
            _describe(parameter, name, owners.get(id(parameter), ()))
            for parameter, name in zip(parameters, names, strict=True)
        ),
        home,
    )


def _owners(models: Mapping[str, nn.Module]) -> dict[int, tuple[ModuleSpec, ...]]:
    """Map id(parameter) to the modules above it, the first place of a tied weight first."""
    owners: dict[int, tuple[ModuleSpec, ...]] = {}
    for prefix, model in models.items():
        outputs = _output_modules(model)
        chains: dict[str, tuple[ModuleSpec, ...]] = {}
        for name, module in walk_modules(model, prefix):
            above = chains.get(_parent(name, chains), ()) if name != prefix else ()
            chain = (*above, ModuleSpec(name, kinds_of(module, output=id(module) in outputs)))
            chains[name] = chain
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners.setdefault(id(parameter), chain)
    return owners


def _parent(name: str, known: Mapping[str, object]) -> str:
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return ""


def kinds_of(module: nn.Module, *, output: bool = False) -> tuple[str, ...]:
    """Return the names of a module's classes, its own first, and its roles."""
    classes = [base.__name__ for base in type(module).__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
    own = classes[0] if classes else type(module).__name__
    roles: list[str] = []
    if "attention" in own.lower():
        roles.append("attention")
    if "Embedding" in own:
        roles.append("embedding")
    if own.endswith("Norm") or "BatchNorm" in own or "InstanceNorm" in own:
        roles.append("norm")
    if {"RNNBase", "RNNCellBase"} & set(classes):
        roles.append("RNN")
    if output:
        roles.append("output")
    return (*classes, *(role for role in roles if role not in classes))


def _output_modules(model: nn.Module) -> set[int]:
    """Return ids of the modules that make the model's output: what it declares itself, or its last linear map."""
    declared = getattr(model, "get_output_embeddings", None)
    if callable(declared):
        try:
            module = declared()
        except (NotImplementedError, AttributeError):
            module = None
        if isinstance(module, nn.Module):
            return {id(module)}
    last = None
    for _, module in walk_modules(model):
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() >= 2 and "Embedding" not in type(module).__name__:
            last = module
    return set() if last is None else {id(last)}


def _describe(parameter: torch.Tensor, name: str, modules: tuple[ModuleSpec, ...]) -> TensorSpec:
    kinds = modules[-1].kinds if modules else ()
    return TensorSpec(name, tuple(parameter.shape), unit_axis(parameter.dim(), kinds), modules)


def unit_axis(dim: int, kinds: Sequence[str]) -> int | None:
    """Return the axis of the output units of a weight with `dim` axes in a module of these kinds.

    Linear maps, convolutions, embeddings (a row is a token) and fused query-key-value projections have them along
    axis 0; transposed convolutions, and the Conv1D of transformers, which is stored as (in, out), along axis 1.
    Vectors and scalars are one unit.
    """
    if dim < 2:
        return None
    return 1 if any(kind.startswith("ConvTranspose") or kind == "Conv1D" for kind in kinds) else 0
