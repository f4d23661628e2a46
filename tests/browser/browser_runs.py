"""Runs that the page is tried on: real trainings, and made-up ones with names that want out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gradmedic as gm
from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import Frame, TensorTable
from gradmedic.record import Recorder

HOSTILE = (
    "<img src=x onerror=window.broken=1>",
    "</script><script>window.broken=1</script>",
    "<a href='javascript:window.broken=1'>click</a><b>bold</b>",
    "\"quotes\" 'single' `tick` ${window.broken=1} %{x} &lt;i&gt; $\\frac{1}{2}$",
    "名字很长" * 75,
    "line\nbreak\r\ttab \x1b[31mred\x07 \u202eturned \u2028 \u2029 \x00",
    "]]><!-- -->",
)


def train(folder: Path, *, lr: float = 1e-2, steps: int = 60, scale: float = 1.0) -> Path:
    """A small classifier, watched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    x = torch.randn(256, 8)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    with gm.watch(model, optimizer, record=folder) as monitor:
        for step in range(steps):
            rows = torch.arange(64) + 64 * (step % 4)
            loss = nn.functional.cross_entropy(model(x[rows] * scale), y[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(accuracy=step / steps)
    return folder


def explode(folder: Path, steps: int = 60) -> Path:
    """A regression whose gradients explode, become infinite and then NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.7)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    with gm.watch(model, optimizer, record=folder):
        for _ in range(steps):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def tear(source: Path, folder: Path) -> Path:
    """A copy of a run whose tables end in the middle of a row, and whose description is gone."""
    folder.mkdir()
    for file in source.iterdir():
        data = file.read_bytes()
        if file.suffix == ".arrows":
            data = data[: int(len(data) * 0.9)]
        if file.name != "run.json":
            (folder / file.name).write_bytes(data)
    return folder


def empty(folder: Path) -> Path:
    """A run that ended before its first step."""
    Recorder(folder, meta={}).close()
    return folder


def record(
    folder: Path, names: list[str], steps: int, optimizers: tuple[str, ...] = ("adam",), torn: Path | None = None
) -> Path:
    """A made-up run of tensors with these names; every tenth tensor has zeros, the last one is not finite now and then.

    With `torn`, a torn copy of the run as it was while it was being written goes there.
    """
    rng = np.random.default_rng(0)
    size = len(names)
    base = 10 ** rng.uniform(-4, 0, size)
    facts = {
        name: ParameterFact(
            name,
            name.rpartition(".")[0],
            "Linear",
            (8, 8),
            numel=64,
            optimizer=optimizers[0],
            reached=True,
            received=True,
            order=at,
        )
        for at, name in enumerate(names)
    }
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    models = [{"name": "", "class": HOSTILE[0]}, *({"name": name, "class": "Linear"} for name in modules if name)]
    recorder = Recorder(folder, meta={"models": models, "command": ["python", HOSTILE[1]]}, budget="500MB")
    known = Facts(parameters=facts, optimizers={name: {"class": "Adam", "defaults": {}} for name in optimizers})
    recorder.event({"kind": "facts", "step": 0, "facts": known.to_json()})
    for step in range(steps):
        for optimizer in optimizers:
            recorder.put(_frame(step, optimizer, tuple(names), base, rng), keep=True)
        if step % 20 == 0:
            rows = [
                _module_row(step, optimizers[0], name, what)
                for name in modules[:40]
                for what in ("output", "grad_output")
            ]
            heads = {"entropy.0": 0.5, "entropy.1": 0.4 + step / 1000, "max_logit.0": 3.0, "max_logit.1": float("inf")}
            rows.append({**_module_row(step, optimizers[0], modules[0], "attention"), "extra": heads})
            recorder.put_module_rows(rows)
            recorder.flush()
    if torn is not None:
        tear(folder, torn)
    recorder.close()
    return folder


def _module_row(step: int, optimizer: str, module: str, what: str) -> dict[str, object]:
    numbers = {"numel": 4096, "zero_count": 8, "nan_count": 0, "inf_count": 0, "norm": 3.0, "rms": 1.0}
    return {"step": step, "optimizer": optimizer, "module": module, "what": what, "leaf": "0", "call": 0, **numbers}


def _frame(step: int, optimizer: str, names: tuple[str, ...], base: np.ndarray, rng: np.random.Generator) -> Frame:
    size = len(names)
    norm = base * np.exp(rng.normal(0, 0.2, size))
    norm[::10] = 0.0
    broken = np.zeros(size, np.int64)
    broken[-1] = step % 7 == 3
    columns = {
        "numel": np.full(size, 64),
        "zero_count": np.where(norm == 0, 64, 1),
        "nan_count": broken,
        "inf_count": np.zeros(size, np.int64),
        "norm": norm,
        "max_abs": norm / 2,
        "min_abs": norm * 1e-6,
        "mean": norm * 1e-3,
        "std": norm / 8,
        "mean_abs": norm / 10,
        "update_norm": norm * 1e-3,
        "unchanged_frac": np.zeros(size),
        "cosine_prev": np.clip(rng.normal(0.1, 0.2, size), -1, 1),
        "weight_norm": np.full(size, 10.0 if step % 8 == 0 else np.nan),
        "clip_scale": np.ones(size),
        "status": np.zeros(size, np.int64),
    }
    histogram = np.zeros((size, 64), np.int64)
    histogram[:, 40:44] = 16
    histogram[norm == 0] = 0
    total = float(np.sqrt((norm**2).sum()))
    return Frame(
        step,
        optimizer,
        time=1.7e9 + step,
        loss=3 / (1 + step),
        lr=1e-3 * (1 + step),
        grad_norm=float("nan") if broken.any() else total,
        grad_norm_post=total,
        clip_scale=1.0,
        clip_threshold=total,
        clipped=step % 3 == 0,
        skipped=step == 5,
        skip_reason=HOSTILE[0] if step == 5 else None,
        nonfinite=int(broken.sum()),
        step_seconds=0.1,
        overhead_seconds=0.001,
        logged={HOSTILE[0]: float(step)},
        tensors=TensorTable(names, columns, histogram if step % 20 == 0 else None),
        modules=(),
    )


def many_names(count: int) -> list[str]:
    """Names as a deep transformer has them."""
    parts = ("attn.q.weight", "attn.q.bias", "attn.v.weight", "mlp.0.weight", "mlp.0.bias")
    return [f"blocks.{at // len(parts)}.{parts[at % len(parts)]}" for at in range(count)]


def hostile_names() -> list[str]:
    """Two tensors in each of the hostile modules."""
    return [f"{name}.{leaf}" for name in HOSTILE for leaf in ("weight", "bias")]


def strict(value: object) -> str:
    """Strict JSON of a payload."""
    return json.dumps(value, allow_nan=False)
