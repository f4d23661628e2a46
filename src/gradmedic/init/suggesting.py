"""From a model to a plan: its parameters, how they are used, what suits them, what they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradmedic.errors import InputError
from gradmedic.init.plan import Plan
from gradmedic.init.roles import Place, target_of
from gradmedic.init.schemes import Suggestion, is_off, measure
from gradmedic.init.trace import Tracer
from gradmedic.init.wiring import Wiring, wiring_by_order
from gradmedic.names import join, unwrap, walk_modules


def suggest(model: nn.Module, sample: Any = None) -> Plan:
    """Suggest an initialisation for every parameter of a model, and say which are far from it.

    He's scheme in front of ReLU and its kin, Xavier's in front of tanh, sigmoid, further layers and attention (fused
    projections included), orthogonal matrices from one time step of a recurrent layer to the next, an open forget gate,
    small embeddings and a small last layer, norms at 1 and 0, and the ends of residual branches scaled down by the
    root of their number, or, where a norm ends them, that norm at 0.

    Args:
        model: what is to be initialised; nothing in it is changed.
        sample: an input to run it on once, to see which activation follows which layer, and where residual branches
            end: a tensor, a tuple of positional or a mapping of keyword arguments. The model runs in eval mode, and
            training flags, buffers and random numbers are as before afterwards. None: guess from the order of modules.

    Returns:
        A plan: print it, `plan.off` for what is off by more than 4 times, `plan.apply_()` to carry it out.

    Raises:
        InputError: not a module, one without parameters, or the sample does not fit it.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
        >>> plan = suggest(model, torch.ones(1, 50))
        >>> [(each.name, each.scheme) for each in plan if each.name.endswith("weight")]
        [('0.weight', 'he'), ('2.weight', 'small')]
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    places = _places(model)
    if not places:
        raise InputError("model: expected parameters that have a shape; run a lazy model once before")
    wiring = _by_order(model) if sample is None else _by_run(model, sample, places)
    return Plan([_suggestion(place, parameter, wiring) for place, parameter in places.values()], traced=wiring.traced)


def _places(model: nn.Module) -> dict[int, tuple[Place, torch.Tensor]]:
    """Return where each parameter is, by its `id`, in order; a shared one under its first name."""
    places: dict[int, tuple[Place, torch.Tensor]] = {}
    for name, module in walk_modules(model):
        for key, parameter in module._parameters.items():
            if parameter is None or is_lazy(parameter) or not parameter.is_floating_point():
                continue
            known = places.get(id(parameter))
            kind = type(module).__name__
            if known is None:
                place = Place(join(name, key), key, module, (kind,))
            elif known[0].module is module:
                continue
            else:
                place = Place(known[0].name, known[0].key, known[0].module, (*known[0].owners, kind))
            places[id(parameter)] = (place, parameter)
    return places


def _suggestion(place: Place, parameter: torch.Tensor, wiring: Wiring) -> Suggestion:
    target = target_of(place, parameter, wiring)
    std, mean = measure(parameter)
    blank = target.scheme in ("residual", "small", "embedding")
    kept = target.scheme in ("keep", "forget")
    off = not kept and is_off(parameter, target.std, target.mean, zero_allowed=blank)
    return Suggestion(
        place.name,
        type(place.module).__name__,
        target.scheme,
        target.std,
        target.mean,
        std,
        mean,
        off,
        target.reason,
        target.gates,
        parameter,
    )


def _by_order(model: nn.Module) -> Wiring:
    return wiring_by_order([module for _, module in walk_modules(model) if not module._modules])


def _by_run(model: nn.Module, sample: Any, places: Mapping[int, tuple[Place, torch.Tensor]]) -> Wiring:
    tracer = Tracer({key: place.name for key, (place, _) in places.items()})
    devices = sorted({p.device.index or 0 for _, p in places.values() if p.device.type == "cuda"})
    with _as_it_was(model), torch.random.fork_rng(devices), torch.enable_grad(), _uncompiled():
        try:
            with tracer:
                output = _call(unwrap(model), sample)
        except Exception as error:
            raise InputError(
                f"sample: the model could not be run on it ({type(error).__name__}: {error}); pass what its forward "
                "takes: a tensor, a tuple of positional or a mapping of keyword arguments, on the model's device"
            ) from error
        return tracer.finish(output)


def _uncompiled() -> AbstractContextManager[Any]:
    """Let compiled parts run as they are written: a function mode sees nothing inside them, and breaks their graphs.

    To import the compiler takes seconds; where nobody has, nothing is compiled.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _call(model: nn.Module, sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(*sample) if isinstance(sample, (tuple, list)) else model(sample)


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode, and its flags and buffers back afterwards."""
    modules = list(model.modules())
    flags = [module.training for module in modules]
    buffers = [
        (module, key, value, value._version, value.clone()) for module in modules for key, value in _buffers(module)
    ]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag
        with torch.no_grad():
            for module, key, value, version, copy in buffers:
                module._buffers[key] = value if value._version == version else value.copy_(copy)


def _buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(key, value) for key, value in module._buffers.items() if value is not None]
