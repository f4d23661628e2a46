"""Steps of Keras optimizers on the torch backend, made known as those of torch's optimizers are.

A Keras optimizer is no torch optimizer, and works on a list of gradients rather than on `.grad`. What is told to the
listeners of `torch_hooks` in one `optimizer.apply`, with `.grad` standing for that list for as long as it takes::

    scale_loss(loss)                     scaled                          the loss, and the scale in force
    _backend_apply_gradients(g, v)
      _clip_gradients(g)                 before_clip … after_clip        unscaled, accumulated; only where it clips
      _backend_update_step(g, v, lr)     before_step … after_step
    a step that is withheld              before_scaler_step … after_scaler_step

The methods are exchanged on Keras's classes, by `hear`, and put back by the function that it returns.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradmedic import torch_hooks
from gradmedic.errors import MEANT_FOR_HOST
from gradmedic.torch_hooks import ClipCall

_BASE = "keras.src.optimizers.base_optimizer"
_PARALLEL = "keras.src.backend.torch.optimizers.torch_parallel_optimizer"
_TRAINER = "keras.src.backend.torch.trainer"
_LOSS_SCALE = "keras.src.optimizers.loss_scale_optimizer"

_removers: list[Callable[[], None]] = []
_users = 0
_reported = False


class KerasStep:
    """Stands for a Keras optimizer: has `param_groups` as one of torch has."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.variables: list[Any] = []
        self.losses: list[torch.Tensor] = []

    def holds(self, variables: Sequence[Any], rate: Any = None) -> list[torch.Tensor]:
        """Take these Keras variables for the parameters; return their torch tensors."""
        parameters = [variable.value for variable in variables]
        rate = getattr(rate, "value", rate)
        self.param_groups = [{"params": parameters} if rate is None else {"params": parameters, "lr": rate}]
        return parameters


_steps: weakref.WeakKeyDictionary[Any, KerasStep] = weakref.WeakKeyDictionary()

#: Optimizers of models that are compiled as a whole; what is heard of their steps is not all, and would be wrong.
_unseen: weakref.WeakSet[Any] = weakref.WeakSet()
#: Optimizers whose model was looked for among those that are training now.
_looked_up: weakref.WeakSet[Any] = weakref.WeakSet()
_MOST_FRAMES = 100
_COMPILED = (
    "jit_compile=True compiles the whole training step of a Keras model, and from inside of it gradients before the "
    "clip, the clip and the loss cannot be seen: this training is not watched, and goes on; compile(..., "
    "jit_compile=False), Keras's default on torch, to watch it"
)


def hear() -> Callable[[], None]:
    """Make steps of Keras optimizers known from now on; returns what ends it, to be called once."""
    global _users
    if _users == 0:
        _install()
    _users += 1

    def stop() -> None:
        global _users
        _users -= 1
        while _users == 0 and _removers:
            _removers.pop()()

    return stop


def leave_out(model: Any) -> bool:
    """Whether a Keras model's training step is compiled as a whole: it is then left alone, and that is said."""
    if not getattr(model, "jit_compile", False):
        return False
    from gradmedic.ledger import say

    optimizer = getattr(model, "optimizer", None)
    for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if each is not None and each not in _unseen:
            _unseen.add(each)
            if each is optimizer:
                say(_COMPILED)
    return True


def _is_unseen(optimizer: Any) -> bool:
    """Whether an optimizer's model is left alone. Whoever hears from the middle of a training looks it up, once."""
    if optimizer not in _looked_up:
        _looked_up.add(optimizer)
        trainer = importlib.import_module(_TRAINER).TorchTrainer
        frame, left = sys._getframe(), _MOST_FRAMES
        while frame.f_back is not None and left:
            frame, left = frame.f_back, left - 1
            model = frame.f_locals.get("self")
            if isinstance(model, trainer) and _owns(model, optimizer):
                leave_out(model)
                break
    return optimizer in _unseen


def _owns(model: Any, optimizer: Any) -> bool:
    held = getattr(model, "optimizer", None)
    return held is optimizer or getattr(held, "inner_optimizer", None) is optimizer


# `gradmedic run` begins to hear at a backward call, which may be one of a step that is compiled.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _install() -> None:
    try:
        _exchange_all()
    except (AttributeError, KeyError, ImportError) as error:
        while _removers:
            _removers.pop()()
        raise RuntimeError(
            f"this version of Keras makes its optimizers' steps in another way (it has no {error}): they count as "
            "made by hand; upgrade keras or gradmedic"
        ) from error


def _exchange_all() -> None:
    base = importlib.import_module(_BASE).BaseOptimizer
    parallel = importlib.import_module(_PARALLEL).TorchParallelOptimizer
    scaling = importlib.import_module(_LOSS_SCALE).LossScaleOptimizer
    _exchange(importlib.import_module(_TRAINER).TorchTrainer, "make_train_function", _make_train_function)
    for owner in (base, scaling):
        _exchange(owner, "scale_loss", _scale_loss)
    _exchange(base, "_backend_apply_gradients", _apply_gradients)
    _exchange(base, "_clip_gradients", _clip_gradients)
    for owner in (base, parallel):
        _exchange(owner, "_backend_update_step", _update_step)
        _exchange(owner, "_backend_increment_gradient_accumulators", _accumulate)
    _exchange(scaling, "_stateful_handle_non_finite_grads", _withhold)


def _exchange(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    original = owner.__dict__[name]
    optimizes = owner.__module__ != _TRAINER

    # A compiled train step breaks its graph here, and the call is made between two of its parts.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @functools.wraps(original)
    def heard(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch_hooks.attached() or torch_hooks.passive() or (optimizes and _is_unseen(self)):
            return original(self, *args, **kwargs)
        theirs = _Original(functools.partial(original, self))
        try:
            return replacement(theirs, self, *args, **kwargs)
        except MEANT_FOR_HOST:
            raise
        except Exception as error:
            if theirs.failed:
                raise
            _report(error)
            return theirs.result if theirs.called else original(self, *args, **kwargs)

    setattr(owner, name, heard)
    _removers.append(lambda: setattr(owner, name, original))


class _Original:
    """Keras's own method: whether it was called, what came of it, and whether an exception is its own."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.called = self.failed = False
        self.result: Any = None

    def __call__(self, *args: Any) -> Any:
        self.called = self.failed = True
        self.result = self._method(*args)
        self.failed = False
        return self.result


def _report(error: Exception) -> None:
    """Say the first fault of our own; Keras goes on as without us."""
    global _reported
    if not _reported:
        _reported = True
        from gradmedic.ledger import say

        say(f"a step of Keras is not seen in full; training goes on ({type(error).__name__}: {error})")


def _step_of(optimizer: Any) -> KerasStep:
    return _steps.setdefault(optimizer, KerasStep())


def _make_train_function(original: Callable[..., Any], model: Any, *given: Any) -> Any:
    leave_out(model)
    return original(*given)


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: torch.Tensor) -> Any:
    scaled = original(loss)
    step = _step_of(getattr(optimizer, "inner_optimizer", optimizer))
    step.losses.append(loss.detach())
    if scaled is not loss:
        torch_hooks.tell("scaled", _scaler(optimizer), scaled, loss)
    return scaled


def _scaler(optimizer: Any) -> Any:
    """Return what a listener reads of a GradScaler: the scale in force."""
    scale = getattr(optimizer, "loss_scale_factor", None)
    if hasattr(optimizer, "inner_optimizer"):
        scale = optimizer.dynamic_scale.value if optimizer.built else optimizer.initial_scale
    return types.SimpleNamespace(_scale=torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32))


def _apply_gradients(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
    step = _step_of(optimizer)
    step.variables = list(trainable_variables)
    grads = list(grads)
    with _standing_for(step.holds(step.variables), grads):
        try:
            return original(grads, trainable_variables)
        finally:
            step.variables = []


def _accumulate(original: Callable[..., Any], optimizer: Any, *args: Any) -> Any:
    torch_hooks.tell("gradients_put_aside")
    return original(*args)


def _clip_gradients(original: Callable[..., Any], optimizer: Any, grads: Sequence[Any]) -> Any:
    step = _step_of(optimizer)
    if len(step.variables) != len(grads):
        return original(grads)
    parameters = step.holds(step.variables)
    _put(parameters, grads)
    torch_hooks.tell("after_unscale", None, step)
    torch_hooks.announce_clip_norm(parameters)
    current = [parameter.grad for parameter in parameters]
    calls = _calls(optimizer, parameters)
    if not calls or any(gradient is None for gradient in current):
        return current if all(gradient is None for gradient in current) else original(current)
    whole = ClipCall("keras", parameters, calls[0].max_norm, clip_value=calls[0].clip_value)
    torch_hooks.tell("before_clip", whole)
    clipped = original(current)
    _put(parameters, clipped)
    for call in calls:
        torch_hooks.tell("after_clip", call)
    return clipped


def _calls(optimizer: Any, parameters: list[torch.Tensor]) -> list[ClipCall]:
    """Return the clipping that a Keras optimizer is set to do, in the order in which Keras asks for it."""
    each, joint, value = (getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    if each and each > 0:
        return [ClipCall("keras", [p], float(each), _norm([p])) for p in parameters]
    if joint and joint > 0:
        return [ClipCall("keras", parameters, float(joint), _norm(parameters))]
    return [ClipCall("keras", parameters, clip_value=float(value))] if value and value > 0 else []


def _norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def _update_step(
    original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any, learning_rate: Any
) -> Any:
    step = _step_of(optimizer)
    parameters = step.holds(trainable_variables, learning_rate)
    _put(parameters, grads)
    _log_mean_loss(step, optimizer)
    torch_hooks.announce_step(step)
    chosen = [parameter.grad for parameter in parameters]
    result = None
    if any(gradient is not None for gradient in chosen):  # else a guard has skipped this step
        result = original(chosen, trainable_variables, learning_rate)
    torch_hooks.tell("after_step", step)
    return result


def _log_mean_loss(step: KerasStep, optimizer: Any) -> None:
    """With accumulation the gradient is the mean over the micro-batches, and so is the loss that it belongs to."""
    losses, step.losses = step.losses, []
    if getattr(optimizer, "gradient_accumulation_steps", None) and losses:
        torch_hooks.tell("loss_is", torch.stack([loss.reshape(()) for loss in losses]).mean())


def _withhold(original: Callable[..., Any], optimizer: Any) -> Any:
    inner = optimizer.inner_optimizer
    step, scaler = _step_of(inner), _scaler(optimizer)
    step.losses.clear()
    parameters = step.holds(inner._trainable_variables, inner.learning_rate)
    gradients = [None if p.grad is None else p.grad / scaler._scale.to(p.grad) for p in parameters]
    with _standing_for(parameters, gradients):
        torch_hooks.tell("before_scaler_step", scaler, step)
        result = original()
        torch_hooks.tell("after_scaler_step", scaler, step, True)
    return result


def _put(parameters: Sequence[torch.Tensor], gradients: Sequence[Any]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.grad is not gradient:
            parameter.grad = gradient


@contextmanager
def _standing_for(parameters: Sequence[torch.Tensor], gradients: Sequence[Any]) -> Iterator[None]:
    """Let `.grad` be these gradients for a while."""
    kept = [parameter.grad for parameter in parameters]
    _put(parameters, gradients)
    try:
        yield
    finally:
        _put(parameters, kept)
