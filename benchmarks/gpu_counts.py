"""What does not depend on the speed of a card: waits for it in a recorded step, and memory above a plain one."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import gradmedic as gm
from gpu_report import Bar, Section
from gpu_sizes import Context, Training, gpt2_small
from gpu_steps import PLAIN, clip_of, step_of
from overhead_counts import Tally

#: Operations that read a value back; `set_sync_debug_mode` sees more, where there is a card.
_READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")
_CARD_ONLY = (
    "Memory is counted by CUDA's allocator. On a CPU waits are operations that read a value, on the path of a device: "
    "also those that read a flag which has arrived, as a guard does, and would wait for nothing on a card."
)


def section(context: Context) -> Section:
    """Count for an unwatched step, torch's clip, and the watched ones."""
    heads = (
        "step",
        "waits for the device",
        'passes under sync debug mode "error"',
        "own account",
        "MiB in the step",
        "MiB kept",
    )
    found = Section("Waits and memory of a step", heads)
    work = gpt2_small(context)
    for _ in range(3):
        step_of(work)()
    work.optimizer.zero_grad()
    # Strict, for what is isolated would neither be counted nor fail.
    path: dict[str, Any] = {"strict": True} if context.device.type == "cuda" else {"strict": True, "backend": "torch"}
    ways: dict[str, dict[str, Any] | None] = {
        PLAIN: None,
        "torch.nn.utils.clip_grad_norm_": None,
        "gm.watch(record)": {},
        "gm.watch(record) with clip.norm": {"transform": gm.clip.norm(1.0)},
        "gm.watch(record) with clip.agc": {"transform": gm.clip.agc(0.01)},
        "gm.watch(record) with clip.norm and guard": {
            "transform": gm.clip.chain(gm.guard.skip_nonfinite(), gm.clip.norm(1.0))
        },
    }
    base: dict[str, float] = {}
    for name, options in ways.items():
        after = clip_of(work) if "clip_grad" in name else None
        row = _one_way(context, work, after, None if options is None else {**options, **path})
        base = base or row
        found.figures[name] = row
        found.rows.append(_cells(name, row, base))
        if options is not None:
            found.bars.append(Bar(f"{name}: waits above the unwatched step", row["waits"] - base["waits"], 0))
    limit = 8 + work.tensors / 1024
    extra = max(found.figures[name]["peak"] for name, options in ways.items() if options is not None) - base["peak"]
    found.bars.append(Bar("most MiB above the unwatched step", extra if context.watch.cuda else None, limit))
    if not context.watch.cuda:
        found.notes.append(_CARD_ONLY)
    del work
    gc.collect()
    return found


def _cells(name: str, row: dict[str, float], base: dict[str, float]) -> tuple[str, ...]:
    own = "" if row["own"] < 0 else f"{row['own']:.0f}"
    passes = {1.0: "yes", 0.0: "NO"}.get(row["passes"], "")
    memory = ["" if row["peak"] < 0 else f"{row[key] - base[key]:+.2f}" for key in ("peak", "kept")]
    return (name, f"{row['waits']:.0f}", passes, own, *memory)


def _one_way(
    context: Context, work: Training, after_backward: Callable[[], None] | None, options: dict[str, Any] | None
) -> dict[str, float]:
    """Return waits and memory of the fastest of three steps that are counted, after eight that are not."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        before = _allocated(context)
        monitor = None
        if options is not None:
            monitor = stack.enter_context(gm.watch(work.model, work.optimizer, record=Path(folder) / "run", **options))
        step = step_of(work, after_backward)
        for _ in range(8):
            step()
        own = -1 if monitor is None else monitor.overhead.host_syncs
        waits, peaks = [], []
        for _ in range(3):
            work.optimizer.zero_grad()
            work.loss().backward()
            with peak_of(context) as peak, waits_of(context) as seen:
                if after_backward is not None:
                    after_backward()
                work.optimizer.step()
            waits.append(len(seen))
            peaks.append(peak[0])
        if monitor is not None:
            own = monitor.overhead.host_syncs - own
        passes = _passes(context, work, after_backward)
        work.optimizer.zero_grad()
        kept = _allocated(context) - before
        return {"waits": min(waits), "passes": passes, "own": own, "peak": max(peaks), "kept": kept}


@contextmanager
def waits_of(context: Context) -> Iterator[list[str]]:
    """Collect what has waited for the device: torch's own warnings on a card, operations that read on a CPU."""
    seen: list[str] = []
    if not context.watch.cuda:
        with Tally() as tally:
            yield seen
        seen += [name for name in _READS for _ in range(tally.ops[name])]
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode("default")
    seen += [str(each.message) for each in said if "called a synchronizing" in str(each.message)]


def _passes(context: Context, work: Training, after_backward: Callable[[], None] | None) -> float:
    """Return whether a step passes where every wait raises, 1 or 0; -1 where that cannot be asked."""
    if not context.watch.cuda:
        return -1.0
    work.optimizer.zero_grad()
    work.loss().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        if after_backward is not None:
            after_backward()
        work.optimizer.step()
    except RuntimeError:
        return 0.0
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return 1.0


@contextmanager
def peak_of(context: Context) -> Iterator[list[float]]:
    """Yield a list that then holds the MiB that were allocated above what there was; -1 without a card."""
    found = [-1.0]
    if not context.watch.cuda:
        yield found
        return
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(context.device)
    before = torch.cuda.memory_allocated(context.device)
    yield found
    torch.cuda.synchronize()
    found[0] = (torch.cuda.max_memory_allocated(context.device) - before) / 2**20


def _allocated(context: Context) -> float:
    return torch.cuda.memory_allocated(context.device) / 2**20 if context.watch.cuda else -1.0
