"""Every hook and patch that gradmedic puts into torch, in one place.

They are process-wide, installed when the first listener comes and removed when the last one goes. Nothing is put on a
parameter, an optimizer or (apart from the short-lived probes of `module_hooks`) a module, so copies, pickles and
exports of a watched model carry nothing of ours. What happens in a training step, and what a listener hears::

    scaler.scale(loss)            scaled(scaler, outputs, given)
    loss.backward()               before_backward(roots, gradients)   outermost calls only
                                  after_backward(finished)
    scaler.unscale_(optimizer)    after_unscale(scaler, optimizer)    explicit, or inside scaler.step
    clip_grad_norm_(...)          before_clip_norm(parameters), before_clip(call) ... after_clip(call)
    scaler.step(optimizer)        before_scaler_step(scaler, optimizer)
      optimizer.step()              before_step(optimizer, args, kwargs) ... after_step(optimizer)
                                  after_scaler_step(scaler, optimizer)
    scaler.update()               after_scaler_update(scaler, scale, tracker)

Whoever imported a clip function by name before we attached calls the same function object; its inner function, which
sits in the closure of torch's own no-grad decorator, is what is exchanged, so that every name is reached.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grad as _clip_grad
from torch.optim import optimizer as _optimizer

from gradmedic.errors import MEANT_FOR_HOST
from gradmedic.listening import ClipCall as ClipCall
from gradmedic.listening import Listener as Listener
from gradmedic.listening import StepArguments as StepArguments
from gradmedic.module_hook import ModuleHook, OutputHook
from gradmedic.torch_state import capturing as capturing
from gradmedic.torch_state import cuda_in_use as cuda_in_use
from gradmedic.torch_state import inside_backward as inside_backward
from gradmedic.torch_state import passive as passive

_lock = threading.RLock()
_listeners: list[Listener] = []
_removers: list[Callable[[], None]] = []


def attach(listener: Listener) -> None:
    """Let a listener hear; installs the patches when it is the first."""
    with _lock:
        if listener in _listeners:
            return
        if not _listeners:
            _install()
        # Copy on write: a running dispatch iterates over the list it began with.
        _listeners[:] = [*_listeners, listener]


def detach(listener: Listener) -> None:
    """Stop a listener; removes the patches when it was the last. Safe from inside a callback, and twice."""
    with _lock:
        if listener not in _listeners:
            return
        _listeners[:] = [other for other in _listeners if other is not listener]
        if not _listeners:
            while _removers:
                _removers.pop()()


def attached() -> tuple[Listener, ...]:
    """Return the listeners that hear now."""
    return tuple(_listeners)


def tell(method: str, *args: Any) -> None:
    """Let listeners hear what a trainer without torch's optimizers does; `method` is one of `Listener`."""
    if _listeners and not passive():
        _tell(method, *args)


def announce_step(optimizer: Any) -> None:
    """Let listeners hear that something that has `param_groups` is about to step."""
    _on_before_step(optimizer, (optimizer,), {})


def announce_clip_norm(parameters: Sequence[torch.Tensor]) -> None:
    """Let listeners hear that a clip function of our own is about to measure gradients."""
    if _listeners and not passive():
        _tell("before_clip_norm", parameters)


@contextlib.contextmanager
def announce_clip(call: ClipCall) -> Iterator[None]:
    """Let listeners hear of a clip call of our own."""
    if _listeners and not passive():
        _tell("before_clip", call)
        yield
        _tell("after_clip", call)
    else:
        yield


def _tell(method: str, *args: Any) -> None:
    for listener in tuple(_listeners):
        try:
            getattr(listener, method)(*args)
        except MEANT_FOR_HOST:
            raise
        except Exception as error:
            listener.failed(method, error)


def _install() -> None:
    _removers.append(_patch(torch.autograd, "backward", _wrap_backward))
    # A compiled `optimizer.step` would trace these hooks away; torch itself breaks its graph there, so a call between
    # two graphs costs nothing more and lets the step be seen.
    pre = _optimizer.register_optimizer_step_pre_hook(_outside_graphs(_on_before_step))
    post = _optimizer.register_optimizer_step_post_hook(_outside_graphs(_on_after_step))
    _removers.extend([pre.remove, post.remove])
    scaler = torch.amp.grad_scaler.GradScaler
    _removers.append(_patch(scaler, "scale", _wrap_scale))
    _removers.append(_patch(scaler, "unscale_", _wrap_unscale))
    _removers.append(_patch(scaler, "step", _wrap_scaler_step))
    _removers.append(_patch(scaler, "update", _wrap_scaler_update))
    _removers.append(_patch_inner(_clip_grad, "clip_grad_norm_", _wrap_norm_of_clip))
    _removers.append(_patch_inner(_clip_grad, "_clip_grads_with_norm_", _wrap_clip_norm))
    _removers.append(_patch_inner(_clip_grad, "clip_grad_value_", _wrap_clip_value))


def _outside_graphs(hook: Callable[..., Any]) -> Callable[..., Any]:
    disabled: Callable[..., Any] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return disabled


class _Switch:
    """Whether a patch is in force. One that someone else has wrapped outlives its removal, and must then do nothing."""

    __slots__ = ("_on",)

    def __init__(self) -> None:
        self._on = True

    def off(self) -> None:
        self._on = False

    def __bool__(self) -> bool:
        return self._on and bool(_listeners)


def _patch(owner: Any, name: str, wrap: Callable[[Any, _Switch], Any]) -> Callable[[], None]:
    original = getattr(owner, name)
    switch = _Switch()
    replacement = wrap(original, switch)
    setattr(owner, name, replacement)

    def remove() -> None:
        switch.off()
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)

    return remove


def _patch_inner(module: Any, name: str, wrap: Callable[[Any, _Switch], Any]) -> Callable[[], None]:
    """Exchange the function inside a decorated one, so that names imported earlier are reached as well."""
    outer = getattr(module, name, None)
    if outer is None:
        return lambda: None
    for cell in getattr(outer, "__closure__", None) or ():
        if getattr(cell.cell_contents, "__name__", None) == name:
            original = cell.cell_contents
            cell.cell_contents = wrap(original, _Switch())

            def remove(cell: Any = cell, original: Any = original) -> None:
                cell.cell_contents = original

            return remove
    return _patch(module, name, wrap)


def _as_sequence(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _wrap_backward(original: Callable[..., None], live: _Switch) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if not live or inside_backward() or passive():
            return original(tensors, grad_tensors, *args, **kwargs)
        if not isinstance(tensors, torch.Tensor):
            tensors = tuple(tensors)  # an iterator would be used up by listening to it
        if grad_tensors is not None and not isinstance(grad_tensors, torch.Tensor):
            grad_tensors = tuple(grad_tensors)
        if not all(isinstance(each, torch.Tensor) for each in _as_sequence(tensors)):
            return original(tensors, grad_tensors, *args, **kwargs)  # torch will say what is wrong with them
        _tell("before_backward", _as_sequence(tensors), _as_sequence(grad_tensors))
        finished = False
        try:
            original(tensors, grad_tensors, *args, **kwargs)
            finished = True
        finally:
            _tell("after_backward", finished)

    return backward


def _on_before_step(optimizer: Any, args: Any, kwargs: Any) -> StepArguments | None:
    if passive():
        return None
    changed: StepArguments | None = None
    for listener in tuple(_listeners):
        try:
            answer = listener.before_step(optimizer, args, kwargs)
        except MEANT_FOR_HOST:
            raise
        except Exception as error:
            listener.failed("before_step", error)
            continue
        if answer is not None:
            changed = answer
            args, kwargs = answer
    return changed


def _on_after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not passive():
        _tell("after_step", optimizer)


def _wrap_scale(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        if live and self.is_enabled() and not passive():
            _tell("scaled", self, result, outputs)
        return result

    return scale


def _wrap_unscale(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def unscale_(self: Any, optimizer: Any) -> Any:
        result = original(self, optimizer)
        if live and self.is_enabled() and not passive():
            _tell("after_unscale", self, optimizer)
        return result

    return unscale_


def _wrap_scaler_step(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not live or not self.is_enabled() or passive():
            return original(self, optimizer, *args, **kwargs)
        _tell("before_scaler_step", self, optimizer)
        finished = False
        try:
            result = original(self, optimizer, *args, **kwargs)
            finished = True
        finally:
            _tell("after_scaler_step", self, optimizer, finished)
        return result

    return step


def _wrap_scaler_update(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(self: Any, new_scale: Any = None) -> Any:
        scale, tracker = getattr(self, "_scale", None), getattr(self, "_growth_tracker", None)
        if not live or not self.is_enabled() or passive() or new_scale is not None or scale is None or tracker is None:
            return original(self, new_scale)
        former = (scale.clone(), tracker.clone())
        result = original(self)
        _tell("after_scaler_update", self, *former)
        return result

    return update


def _wrap_norm_of_clip(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if live and not passive():
            if not isinstance(parameters, torch.Tensor):
                # A generator would be used up by listening to it; torch warns about an empty one, which stays empty.
                listed = list(parameters)
                parameters = listed if listed else parameters
            _tell("before_clip_norm", _as_sequence(parameters))
        return original(parameters, *args, **kwargs)

    return clip_grad_norm_


def _wrap_clip_norm(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def _clip_grads_with_norm_(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        if not live or passive():
            return original(parameters, max_norm, total_norm, *args, **kwargs)
        parameters = _as_sequence(parameters)
        call = ClipCall("clip_grad_norm_", parameters, max_norm=float(max_norm), total_norm=total_norm)
        _tell("before_clip", call)
        result = original(parameters, max_norm, total_norm, *args, **kwargs)
        _tell("after_clip", call)
        return result

    return _clip_grads_with_norm_


def _wrap_clip_value(original: Callable[..., Any], live: _Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_value_(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
        if not live or passive():
            return original(parameters, clip_value, *args, **kwargs)
        parameters = _as_sequence(parameters)
        call = ClipCall("clip_grad_value_", parameters, clip_value=float(clip_value))
        _tell("before_clip", call)
        result = original(parameters, clip_value, *args, **kwargs)
        _tell("after_clip", call)
        return result

    return clip_grad_value_


def hook_inputs(module: torch.nn.Module, callback: Callable[..., None]) -> Callable[[], None]:
    """Call `callback(module, args, kwargs)` before each forward call of a module; returns what takes it off again."""
    return module.register_forward_pre_hook(ModuleHook(callback), with_kwargs=True).remove


def hook_calls(module: torch.nn.Module, callback: Callable[..., None]) -> Callable[[], None]:
    """Call `callback(module, args)` before each forward call of a module; returns what takes it off again."""
    return module.register_forward_pre_hook(ModuleHook(callback)).remove


def hook_outputs(module: torch.nn.Module, callback: Callable[[Any], None]) -> Callable[[], None]:
    """Call `callback(output)` after each forward call of a module; returns what takes it off again."""
    return module.register_forward_hook(OutputHook(callback)).remove
