"""On a device nothing is read back, and nothing is copied there, while a step is decided about.

The meta device stands for an accelerator: its tensors have no data, so that every read (`item`, `tolist`, `if tensor`)
raises; a dispatch mode refuses copies from the host, which would wait for a real device as well.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from clip_loop import Treated
from clip_models import Model
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradmedic as gm
from gradmedic.clip import (
    adagc,
    agc,
    autoclip,
    boost,
    chain,
    dry_run,
    ema_ratio,
    layers,
    median_clip,
    norm,
    param_ratio,
    percentile,
    spike_clip,
    value,
    warmup,
    zclip,
    zscore,
)
from gradmedic.clip.access import Gradients
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.base import settle
from gradmedic.clip.spec import describe_tensors
from gradmedic.clip.summary import GradientSummary

META = torch.device("meta")

TRANSFORMS = {
    "norm": lambda: norm(1.0),
    "norm by schedule": lambda: norm(lambda step: 1.0 + step),
    "l1": lambda: norm(1.0, norm_type=1.0),
    "p 3": lambda: norm(1.0, norm_type=3.0),
    "max": lambda: norm(1.0, norm_type=float("inf")),
    "by tensor": lambda: norm(1.0, per="tensor"),
    "by unit": lambda: norm(1.0, per="unit"),
    "value": lambda: value(0.5),
    "percentile": lambda: norm(percentile(95)),
    "percentile by tensor": lambda: norm(percentile(95), per="tensor"),
    "zscore": lambda: norm(zscore()),
    "robust zscore by tensor": lambda: norm(zscore(robust=True), per="tensor"),
    "ema": lambda: norm(ema_ratio()),
    "param_ratio": lambda: norm(param_ratio()),
    "param_ratio by tensor": lambda: norm(param_ratio(), per="tensor"),
    "warmup": lambda: norm(warmup(0.5, percentile(95), 1)),
    "warmup of transforms": lambda: warmup(norm(0.5), zclip(), 1),
    "autoclip": lambda: autoclip(),
    "median_clip": lambda: median_clip(),
    "zclip": lambda: zclip(),
    "adagc": lambda: adagc(),
    "agc": lambda: agc(),
    "agc with axes": lambda: agc(exclude=["embed"], unit_dims={"conv.weight": 1}),
    "spike_clip": lambda: spike_clip(grace=0),
    "boost": lambda: boost(1e-3),
    "boost of the model": lambda: boost(1e-3, per="model"),
    "layers of numbers": lambda: layers({"encoder.*": 1.0, "Embedding": 10.0}),
    "layers": lambda: layers({"head": value(0.1), "norm": agc(), "conv": norm(1.0, per="unit"), "RNN": 2.0}, zclip()),
    "dry_run": lambda: dry_run(chain(gm.guard.skip_nonfinite(), value(0.1), zclip())),
    "chain": lambda: chain(gm.guard.skip_nonfinite(), value(0.1), agc(), spike_clip(grace=0), norm(1.0)),
    "skip_nonfinite": lambda: gm.guard.skip_nonfinite(),
    "skip_spikes": lambda: gm.guard.skip_spikes(),
    "skip_spikes of the loss": lambda: gm.guard.skip_spikes("loss", robust=False),
    "breaker": lambda: gm.guard.breaker(),
    "guard.default": lambda: gm.guard.default(),
}


class NoTransfer(TorchDispatchMode):
    """Fails on every read and on every copy between the host and a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert "_local_scalar_dense" not in name, "a device value is read by the host"
        out = func(*args, **(kwargs or {}))
        if "copy" in name:
            tensors = [each for each in (*args, out) if isinstance(each, torch.Tensor)]
            kinds = {each.device.type for each in tensors}
            assert len(kinds) < 2, f"{name} copies between {kinds}"
        return out


class NoHostData(TorchFunctionMode):
    """Fails where a tensor on a device is made of host data, which a dispatch mode does not see."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor):
            assert out.device.type == "cpu", "a tensor is made of host data on the device"
        return out


def on_meta(model: nn.Module) -> tuple[Any, list[torch.Tensor]]:
    model = model.to(META)
    parameters = list(model.parameters())
    return describe_tensors(parameters, [name for name, _ in model.named_parameters()], {"": model}), parameters


@pytest.mark.parametrize("rich", [False, True], ids=["plain", "loss scale, one gradient missing"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_nothing_is_read_back(name, rich):
    scaled = missing = rich
    spec, parameters = on_meta(Model(1))
    assert spec.device == META
    transform = TRANSFORMS[name]()
    state = transform.init(spec)
    size = len(spec)
    scale = torch.empty((), device=META) if scaled else None
    gradients = [torch.empty_like(p) for p in parameters]
    if missing:
        gradients[2] = None
    access = Gradients(spec, parameters, gradients, lambda p: torch.empty_like(p), scale)

    def vector(dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=META)

    seen = vector(torch.bool) if missing else None
    loss = torch.empty((), dtype=torch.float64, device=META)
    for step in range(2):
        summary = GradientSummary(
            spec, vector(), vector(torch.int64), seen, step, loss, None if missing else vector(), None, access
        )
        with NoHostData(), NoTransfer():
            decision, after = transform.update(summary, state)
            state = settle(transform, state, after, decision.skip)
            apply_operations(gradients, decision.operations, on_host=False, loss_scale=scale)
            assert decision.operations == () or decision.scale.device in (META, torch.device("cpu"))
    for held in _tensors(state):
        assert held.device == META


def _tensors(state: Any) -> list[torch.Tensor]:
    below = [each for part in state.parts.values() for each in _tensors(part)]
    return [*state.shared.values(), *state.by_tensor.values(), *below]


def test_the_watch_above_would_notice():
    """The guard of this file is no empty one: each of these is what must not happen."""
    device = torch.empty(3, device=META)
    for act in (
        lambda: device.sum().item(),
        lambda: device.tolist(),
        lambda: bool(device.any()),
        lambda: torch.tensor([1.0], device=META),
        lambda: device.cpu(),
        lambda: torch.ones(3).to(META),
        lambda: torch.ones(3).sum().item(),
    ):
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), NoHostData(), NoTransfer():
            act()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_devices_path_gives_the_hosts_numbers(name):
    """The same gradients with `on_host=False`: equal but for the rounding of an fp32 factor."""
    torch.manual_seed(0)
    model = Model(1)
    moments = {id(p): torch.full_like(p, 1e-4) for p in model.parameters()}
    loops = [
        Treated(TRANSFORMS[name](), model, on_host=on_host, second_moment=lambda p: moments[id(p)])
        for on_host in (True, False)
    ]
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        given = [torch.randn(p.shape, generator=generator) for p in model.parameters()]
        one, two = (loop.step(given) for loop in loops)
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b, rtol=3e-7, atol=0)
