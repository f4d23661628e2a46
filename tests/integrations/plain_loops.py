"""The same trainings as a plain loop makes them, and what torch says of their gradients."""

from __future__ import annotations

import contextlib
import math
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gradmedic.cli import main as run_command
from gradmedic.record import open_run

ROWS, BATCH = 48, 8


@dataclass
class Step:
    loss: float
    pre: float
    post: float


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make_data(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


def make_loader(rows: int = ROWS) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*make_data(rows)), batch_size=BATCH)


def norm_of(parameters) -> float:
    gradients = [p.grad.double().flatten() for p in parameters if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.cat(gradients))) if gradients else 0.0


def plain_loop(model, optimizer, batches, loss_of, clip=None, accumulate=1, autocast=None, divide=True) -> list[Step]:
    """Train; `batches` are micro-batches, whose losses are divided by `accumulate`, as most trainers do."""
    steps, total = [], 0.0
    optimizer.zero_grad()
    for at, batch in enumerate(batches):
        with torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext():
            loss = loss_of(model, batch) / (accumulate if divide else 1)
        loss.backward()
        total += loss.item()
        if (at + 1) % accumulate:
            continue
        pre = norm_of(model.parameters())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        steps.append(Step(total, pre, norm_of(model.parameters())))
        optimizer.step()
        optimizer.zero_grad()
        total = 0.0
    return steps


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def assert_same(run, expected: list[Step], rel=2e-5, optimizer=None):
    rows = run.steps.to_pylist()
    rows = [row for row in rows if optimizer is None or row["optimizer"] == optimizer]
    assert len(rows) == len(expected)
    for row, step in zip(rows, expected, strict=True):
        got = (row["loss"], row["grad_norm"], row["grad_norm_post"])
        for value, wanted in zip(got, (step.loss, step.pre, step.post), strict=True):
            assert math.isclose(value, wanted, rel_tol=rel, abs_tol=1e-7), (row["step"], got, step)


def ending_of(run) -> str:
    (end,) = [event for event in run.events if event["kind"] == "end"]
    return end["reason"]


def own_errors(run) -> list[dict]:
    return [event for event in run.events if event["kind"] == "error"]


def watched_script(folder: Path, script: str, *options: str) -> tuple[int, object]:
    """Run a script under `gradmedic run` in this process; return its exit code and the run."""
    path = folder / "script.py"
    path.write_text(script, "utf-8")
    kept = sys.argv[:], sys.path[:], sys.modules["__main__"]
    try:
        code = run_command(["run", "--record", str(folder / "run"), "--quiet", *options, str(path)])
    finally:
        sys.argv[:], sys.path[:], sys.modules["__main__"] = kept
    return code, open_run(folder / "run")


def run_block(block: str, folder: Path, monkeypatch, **names) -> dict:
    """Execute a block of documentation as a script would be, in a folder of its own."""
    monkeypatch.chdir(folder)
    path = folder / "block.py"
    path.write_text(block, "utf-8")
    return runpy.run_path(str(path), init_globals=names)


def own_names(run) -> set[str]:
    """The tensors' names, without the model's own name, which a process with other live models puts before them."""
    return {re.sub(r"^(Sequential|_FabricModule)\.", "", name) for name in run.tensors["name"].to_pylist()}
