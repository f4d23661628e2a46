"""What a training step takes on a card: watched and treated, beside torch's clip and what people use today.

Blocks of a few steps take turns, each begun with a step that is not timed and ended when the device is done and what
was recorded is on file; while others run, no hook of gradmedic is installed.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gradmedic as gm
from gpu_report import Bar, Section
from gpu_sizes import Context, Training, gpt2_small, one_billion
from gpu_timing import Timings

PLAIN, CLIPPED = "unwatched", "torch.nn.utils.clip_grad_norm_"
WATCHED, TREATED = "gm.watch(record)", "gm.watch(record) with clip.norm"
HISTOGRAMS, ITEMS = "histogram of each gradient, as wandb.watch takes it", "`.norm().item()` of each parameter"

Step = Callable[[], None]


@dataclass
class Variant:
    """One way of training: `block` yields the step, `settle` waits for what it has left to do."""

    name: str
    block: Callable[[], Any]
    settle: Step = lambda: None


def section(context: Context) -> Section:
    """Time all variants on both models."""
    found = Section("Training steps", ("model", "step", "ms", "against unwatched (95 %)", "blocks"))
    for share, make in ((0.4, gpt2_small), (1.0, one_billion)):
        budget = context.budget.part(context.budget.left * share)
        if budget.over and not context.tiny:
            found.notes.append(f"Cut short: no time was left for {make.__name__}.")
            continue
        try:
            _model(Context(context.device, context.tiny, context.scale, budget, context.watch), found, make(context))
        except torch.OutOfMemoryError:
            found.notes.append(f"{make.__name__}: out of memory; a smaller --scale fits.")
        finally:
            gc.collect()
            if context.device.type == "cuda":
                torch.cuda.empty_cache()
    return found


def _model(context: Context, found: Section, work: Training) -> None:
    title = f"{work.name}: {work.tensors} tensors, {work.elements:,} elements"
    plain = Variant(PLAIN, lambda: always(step_of(work)))
    clipped = Variant(CLIPPED, lambda: always(step_of(work, clip_of(work))))
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        first = [plain, clipped, watched(work, Path(name), cleanup, WATCHED), histograms(work), items(work)]
        _rows(found, title, timed(context, first, context.budget.left * 0.6), leave=())
        cleanup.close()
        # A second attachment replaces the first: the treated variant gets a turn of its own.
        treated = watched(work, Path(name), cleanup, TREATED, transform=gm.clip.norm(1.0))
        second = timed(context, [plain, clipped, treated], context.budget.left)
        _rows(found, title, second, leave=(PLAIN, CLIPPED))
        found.bars += [
            Bar(f"{work.name}: watched, against unwatched", found.figures[title][WATCHED], 1.01),
            Bar(f"{work.name}: watched + clip, against clip_grad_norm_", second.ratio(TREATED, CLIPPED)[0], 1.0),
        ]


def _rows(found: Section, title: str, times: Timings, leave: tuple[str, ...]) -> None:
    kept = found.figures.setdefault(title, {})
    for name in times.device:
        if name in leave:
            continue
        ratio, low, high = times.ratio(name, PLAIN)
        kept[name] = ratio
        found.rows.append(
            (title, name, f"{times.median(name):.4g}", f"{ratio:.3f} ({low:.3f}–{high:.3f})", str(times.rounds))
        )
    kept.setdefault("block_ms", []).append(times.device)
    if times.cut:
        found.notes.append(f"{title}: cut short after {times.rounds} of {times.planned} blocks.")


def timed(context: Context, variants: list[Variant], seconds: float) -> Timings:
    """Return milliseconds a step, of all variants in turns."""
    steps, rounds = (1, 2) if context.tiny else (4, 12)
    found = Timings({v.name: [] for v in variants}, {v.name: [] for v in variants}, rounds)
    budget = context.budget.part(seconds)
    for turn in range(rounds):
        if turn >= min(2, rounds) and budget.over:
            found.cut = True
            break
        at = turn % len(variants)
        for variant in variants[at:] + variants[:at]:
            found.device[variant.name].append(_block(context, variant, steps))
    return found


def _block(context: Context, variant: Variant, steps: int) -> float:
    def whole() -> None:
        for _ in range(steps):
            step()
        variant.settle()

    with variant.block() as step:
        step()
        variant.settle()
        return context.watch.until_done(whole) / steps


@contextmanager
def always(step: Step) -> Iterator[Step]:
    yield step


def step_of(work: Training, after_backward: Step | None = None) -> Step:
    def step() -> None:
        work.optimizer.zero_grad()
        work.loss().backward()
        if after_backward is not None:
            after_backward()
        work.optimizer.step()

    return step


def clip_of(work: Training) -> Step:
    parameters = list(work.model.parameters())

    def clip() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    return clip


def watched(work: Training, folder: Path, cleanup: ExitStack, name: str, **options: Any) -> Variant:
    """Watch from now on, with every hook gone while others run."""
    monitor = gm.watch(work.model, work.optimizer, record=folder / name.replace(" ", "-"), every=1, **options)
    cleanup.callback(monitor.close)
    step = step_of(work)
    for _ in range(6):  # the first steps look at the wiring
        step()
    away = ExitStack()
    away.enter_context(monitor.paused())

    @contextmanager
    def block() -> Iterator[Step]:
        away.close()
        yield step
        away.enter_context(monitor.paused())

    return Variant(name, block, monitor.flush)


def histograms(work: Training) -> Variant:
    """A hook on every parameter that takes 64 bins between the least and the largest, and reads them back."""

    def hook(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            flat = parameter.grad.detach().reshape(-1).float()
            low, high = flat.min().item(), flat.max().item()
            if low < high:
                flat.histc(bins=64, min=low, max=high).cpu().tolist()

    @contextmanager
    def block() -> Iterator[Step]:
        handles = [p.register_post_accumulate_grad_hook(hook) for p in work.model.parameters()]
        yield step_of(work)
        for handle in handles:
            handle.remove()

    return Variant(HISTOGRAMS, block)


def items(work: Training) -> Variant:
    def norms() -> None:
        _ = {name: p.grad.norm().item() for name, p in work.model.named_parameters() if p.grad is not None}

    return Variant(ITEMS, lambda: always(step_of(work, norms)))
