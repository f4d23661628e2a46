"""Runs to diagnose: synthetic ones, and tiny real trainings whose frames are filled by the reference formulas.

The loop here is deliberately plain and independent of gradmedic's own probes: statistics in float64, straight from
their definitions (DESIGN section 4), so that rules are held against what they are specified on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import NONE, SEEN, Frame, TensorTable


@dataclass
class FakeRun:
    """What `diagnose` asks of a run."""

    recorded: list[Frame] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def frames(self) -> Iterable[Frame]:
        return iter(self.recorded)


def table(columns: dict[str, Sequence[float]], names: Sequence[str] | None = None) -> TensorTable:
    """A table from columns; counts default to zero, `numel` to 1, every tensor SEEN."""
    size = len(next(iter(columns.values())))
    names = tuple(names or (f"layers.{i}.weight" for i in range(size)))
    filled = {
        "numel": np.ones(size, dtype=np.int64),
        "nan_count": np.zeros(size, dtype=np.int64),
        "inf_count": np.zeros(size, dtype=np.int64),
        "zero_count": np.zeros(size, dtype=np.int64),
        "status": np.full(size, SEEN, dtype=np.int64),
    }
    return TensorTable(names, filled | {key: np.asarray(value) for key, value in columns.items()})


def frames(
    losses: Sequence[float | None],
    norms: Sequence[float | None] | None = None,
    *,
    optimizer: str = "SGD",
    tensors: TensorTable | None = None,
    **common: Any,
) -> list[Frame]:
    """Frames with these losses and pre-clip norms; a list in `common` varies over steps."""
    made = []
    for step, loss in enumerate(losses):
        values = {key: value[step] if isinstance(value, list) else value for key, value in common.items()}
        values = {"lr": 0.1, "micro_batches": 1} | values
        norm = norms[step] if norms is not None else 1.0
        made.append(
            Frame(
                step, optimizer, time=float(step), loss=loss, grad_norm=norm, tensors=tensors or TensorTable(), **values
            )
        )
    return made


def fact(name: str, shape: tuple[int, ...] = (4, 4), **values: Any) -> ParameterFact:
    """A trainable, owned, reached parameter, unless `values` say otherwise."""
    defaults: dict[str, Any] = {
        "module": name.rpartition(".")[0],
        "kind": "Linear",
        "shape": shape,
        "numel": math.prod(shape),
        "optimizer": "SGD",
        "reached": True,
        "received": True,
    }
    return ParameterFact(name, **(defaults | values))


def facts_event(facts: Facts, time: float = -1.0) -> dict[str, Any]:
    return {"kind": "facts", "time": time, "facts": facts.to_json()}


def facts_of(models: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer]) -> Facts:
    """Facts of real models: who owns what, in registration order (which is execution order for the models here)."""
    owner = {
        id(p): (name, place)
        for name, o in optimizers.items()
        for place, group in enumerate(o.param_groups)
        for p in group["params"]
    }
    facts = Facts(steps_walked=3)
    order = 0
    for prefix, model in models.items():
        modules = dict(model.named_modules())
        for name, p in model.named_parameters():
            full = f"{prefix}.{name}" if prefix else name
            module = name.rpartition(".")[0]
            facts.parameters[full] = ParameterFact(
                full,
                module=full.rpartition(".")[0],
                kind=type(modules[module]).__name__,
                shape=tuple(p.shape),
                dtype=str(p.dtype).removeprefix("torch."),
                numel=p.numel(),
                trainable=p.requires_grad,
                optimizer=owner.get(id(p), (None, None))[0],
                group=owner.get(id(p), (None, None))[1],
                reached=True if p.requires_grad else None,
                received=p.grad is not None,
                order=order,
            )
            order += 1
    for name, optimizer in optimizers.items():
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        defaults = {
            key: list(value) if isinstance(value, tuple) else value for key, value in optimizer.defaults.items()
        }
        plain = {key: value for key, value in defaults.items() if isinstance(value, (int, float, list))}
        facts.optimizers[name] = {"class": type(optimizer).__name__, "tensors": len(tensors), "defaults": plain}
        own = [
            {key: list(value) if isinstance(value, tuple) else value for key, value in group.items() if key in plain}
            for group in optimizer.param_groups
        ]
        facts.optimizers[name]["groups"] = [
            {key: value for key, value in group.items() if key != "lr" and value != plain[key]} for group in own
        ]
    return facts


class Recorder:
    """Steps optimizers and fills frames."""

    def __init__(self, models: dict[str, nn.Module] | nn.Module, optimizers: Any) -> None:
        self.models = {"": models} if isinstance(models, nn.Module) else models
        if isinstance(optimizers, torch.optim.Optimizer):
            optimizers = {type(optimizers).__name__: optimizers}
        self.optimizers: dict[str, torch.optim.Optimizer] = optimizers
        self.run = FakeRun()
        self._steps = dict.fromkeys(self.optimizers, 0)
        self._clock = 0.0
        self._clips = dict.fromkeys(self.optimizers, 0)
        self._previous: dict[str, np.ndarray] = {}
        self._named = {
            id(p): (f"{prefix}.{name}" if prefix else name)
            for prefix, model in self.models.items()
            for name, p in model.named_parameters()
        }
        self.refresh_facts()

    def refresh_facts(self) -> None:
        self.run.events.append(facts_event(facts_of(self.models, self.optimizers), time=self._clock))

    def step(self, loss: Any, name: str | None = None, *, clip: float | None = None, **values: Any) -> Frame:
        """One step of one optimizer, after backward; `skipped=True` leaves the weights alone."""
        name = name or next(iter(self.optimizers))
        optimizer = self.optimizers[name]
        params = [p for group in optimizer.param_groups for p in group["params"]]
        columns = self._gradients(params)
        norm = _total([p.grad for p in params if p.grad is not None])
        scale, clipped = 1.0, False
        if clip is not None and norm is not None and norm > clip:
            scale, clipped = clip / (norm + 1e-6), True
            self._clips[name] += 1
            for p in params:
                if p.grad is not None:
                    p.grad.mul_(scale)
        before = [p.detach().double().numpy().copy() for p in params]
        if not values.get("skipped"):
            optimizer.step()
        columns |= self._updates(params, before)
        step = self._steps[name]
        self._steps[name] += 1
        self._clock += 1.0
        frame = Frame(
            step,
            name,
            time=self._clock,
            loss=None if loss is None else float(torch.as_tensor(loss).detach()),
            lr=optimizer.param_groups[0]["lr"],
            lrs=tuple(group["lr"] for group in optimizer.param_groups),
            grad_norm=norm,
            grad_norm_post=None if norm is None else norm * scale,
            clip_scale=scale,
            clip_threshold=clip,
            clipped=clipped,
            clip_frequency=self._clips[name] / (step + 1),
            nonfinite=int(columns["nan_count"].sum() + columns["inf_count"].sum()),
            micro_batches=1,
            tensors=TensorTable(tuple(self._named[id(p)] for p in params), columns),
            **values,
        )
        self.run.recorded.append(frame)
        return frame

    def _gradients(self, params: list[nn.Parameter]) -> dict[str, np.ndarray]:
        rows = []
        for p in params:
            if p.grad is None:
                rows.append((p.numel(), 0, 0, 0, np.nan, np.nan, NONE, np.nan))
                continue
            g = p.grad.detach().double().numpy().ravel()
            ok = g[np.isfinite(g)]
            old = self._previous.get(self._named[id(p)])
            cosine = np.nan
            if old is not None and 0 < (old @ old) * (g @ g) < math.inf:
                cosine = float(old @ g / math.sqrt((old @ old) * (g @ g)))
            self._previous[self._named[id(p)]] = g
            norm = math.sqrt(float(ok @ ok))
            largest = float(np.abs(ok).max()) if len(ok) else 0.0
            rows.append(
                (
                    g.size,
                    int((g == 0).sum()),
                    int(np.isnan(g).sum()),
                    int(np.isinf(g).sum()),
                    norm,
                    largest,
                    SEEN,
                    cosine,
                )
            )
        keys = ("numel", "zero_count", "nan_count", "inf_count", "norm", "max_abs", "status", "cosine_prev")
        columns = {key: np.array([row[i] for row in rows]) for i, key in enumerate(keys)}
        columns["status"] = columns["status"].astype(np.int64)
        return columns

    def _updates(self, params: list[nn.Parameter], before: list[np.ndarray]) -> dict[str, np.ndarray]:
        after = [p.detach().double().numpy() for p in params]
        pairs = list(zip(before, after, strict=True))
        with np.errstate(all="ignore"):
            return {
                "update_norm": np.array([np.sqrt(((b - a) ** 2).sum()) for b, a in pairs]),
                "unchanged_frac": np.array([(b == a).mean() for b, a in pairs]),
                "weight_norm": np.array([np.sqrt((b**2).sum()) for b, _ in pairs]),
            }


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    *,
    criterion: Callable[..., torch.Tensor] = nn.functional.cross_entropy,
    scheduler: Any = None,
    clip: float | None = None,
    accumulate: int = 1,
) -> FakeRun:
    """The usual loop; stops early when the loss is no longer finite for ten steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # nets this small lose more to waking threads than they gain
    try:
        return _train(model, optimizer, batches, steps, criterion, scheduler, clip, accumulate)
    finally:
        torch.set_num_threads(threads)


def _train(model, optimizer, batches, steps, criterion, scheduler, clip, accumulate) -> FakeRun:
    recorder = Recorder(model, optimizer)
    broken = 0
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for part in range(accumulate):
            x, y = batches(step * accumulate + part)
            loss = criterion(model(x), y) / accumulate
            loss.backward()
            total += float(loss.detach())
        recorder.step(total, clip=clip)
        if scheduler is not None:
            scheduler.step()
        if step == 0:
            recorder.refresh_facts()
        broken = broken + 1 if not math.isfinite(total) else 0
        if broken == 10:
            break
    return recorder.run


def _total(grads: list[torch.Tensor]) -> float | None:
    if not grads:
        return None
    with np.errstate(all="ignore"):
        return math.sqrt(sum(float((g.detach().double() ** 2).sum()) for g in grads))


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean()) / x.std(), torch.tensor(data.target)


def digits(batch: int = 64, seed: int = 0) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """Batches of the 8x8 digits, standardised, as [B, 64] and labels [B]."""
    x, y = _digits()
    generator = torch.Generator().manual_seed(seed)

    def draw(_step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(0, len(x), (batch,), generator=generator)
        return x[rows], y[rows]

    return draw


def mlp(depth: int, width: int = 32, activation: type[nn.Module] = nn.ReLU, gain: float | None = None) -> nn.Sequential:
    """`depth` linear layers from 64 to 10; `gain` times He's normal initialisation (Xavier's for sigmoid and tanh)."""
    sizes = [64] + [width] * (depth - 1) + [10]
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(fan_in, fan_out)
        if gain is not None:
            if activation is nn.ReLU:
                nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            else:
                nn.init.xavier_normal_(linear.weight)
            with torch.no_grad():
                linear.weight.mul_(gain)
                linear.bias.zero_()
        layers.append(linear)
        if i < depth - 1:
            layers.append(activation())
    return nn.Sequential(*layers)
