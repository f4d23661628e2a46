"""What watching costs: a step with gradmedic against the same step without, and beside it what people use today.

Every number is a pair: a short block of steps with the tool and one without, one right after the other in random order,
on one model and one optimizer of one process, so that drifts of the machine fall on both. Reported is the median of
the pairs' ratios with a bootstrap interval, and the ratio of the fastest single steps. A block ends when what it has
recorded is on file, and begins with a step that is not timed.

    python benchmarks/overhead.py                      # all tables; about 15 minutes on a quiet laptop
    python benchmarks/overhead.py transformer --pairs 40
    python benchmarks/overhead.py mlp tensors counts memory
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gradmedic as gm
from overhead_counts import count_table, memory_child, memory_table
from overhead_models import Workload, make_large_transformer, make_many_tensors, make_mlp, make_transformer

Step = Callable[[], None]
SECTIONS = ("transformer", "large", "mlp", "tensors", "counts", "memory")


@dataclass
class Variant:
    """One way of training: `block` yields the step to be timed, `settle` ends what a block has left to do."""

    name: str
    base: str
    block: Callable[[], Any]
    settle: Callable[[], None] = lambda: None
    share: float = 1.0
    bar: float | None = None
    own_seconds: Callable[[], float] | None = None


@dataclass
class Times:
    """Seconds a step: of the baseline and of the variant, by pair, and of the fastest single steps."""

    base: list[float] = field(default_factory=list)
    with_it: list[float] = field(default_factory=list)
    fastest: list[float] = field(default_factory=lambda: [float("inf"), float("inf")])
    own: list[float] = field(default_factory=list)
    cpu: list[list[float]] = field(default_factory=lambda: [[], []])


def plain_step(work: Workload, after_backward: Step | None = None) -> Step:
    def step() -> None:
        work.optimizer.zero_grad()
        work.loss().backward()
        if after_backward is not None:
            after_backward()
        work.optimizer.step()

    return step


def clip(work: Workload) -> Step:
    parameters = list(work.model.parameters())

    def clip_gradients() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    return clip_gradients


@contextmanager
def always(step: Step) -> Iterator[Step]:
    yield step


def watched(
    work: Workload, folder: Path, name: str, base: str, bar: float | None, *, warm_up: int = 40, **options: Any
) -> Variant:
    """Watch from the first block to the last, with every hook gone while the baseline's blocks run.

    The first steps, of which more are looked at in full than once in 50, are made before the first block.
    """
    monitor = gm.watch(work.model, work.optimizer, record=folder / name.replace(" ", "-"), every=1, **options)
    step = plain_step(work)
    for _ in range(warm_up):
        step()
    away = ExitStack()
    away.enter_context(monitor.paused())

    @contextmanager
    def block() -> Iterator[Step]:
        away.close()
        yield step
        away.enter_context(monitor.paused())

    work.cleanup.callback(monitor.close)
    work.monitors[name] = monitor
    settle = monitor.flush  # the writer's thread works beside the steps: wait for it inside the timing
    return Variant(name, base, block, settle, bar=bar, own_seconds=lambda: monitor.overhead.seconds)


def peers(work: Workload, folder: Path, share: float) -> tuple[list[Variant], list[str]]:
    """What people use today; those that are not installed are named in the second list."""
    found: list[Variant] = []
    missing: list[str] = []

    def norms() -> None:
        _ = {name: p.grad.norm().item() for name, p in work.model.named_parameters() if p.grad is not None}

    found.append(Variant("`.norm().item()` for each parameter", "plain", lambda: always(plain_step(work, norms))))
    for make in (_lightning, _tensorboard, _wandb):
        try:
            found.append(make(work, folder))
        except ImportError as error:
            missing.append(f"{make.__name__.strip('_')} ({error.name or error})")
    for variant in found:
        variant.share = share
    return found, missing


def _lightning(work: Workload, _folder: Path) -> Variant:
    from lightning.pytorch.utilities import grad_norm

    def log() -> None:
        _ = {name: float(value) for name, value in grad_norm(work.model, norm_type=2).items()}

    return Variant("Lightning `grad_norm`", "plain", lambda: always(plain_step(work, log)))


def _tensorboard(work: Workload, folder: Path) -> Variant:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    work.cleanup.callback(writer.close)
    steps = iter(range(10**9))

    def log() -> None:
        step = next(steps)
        for name, p in work.model.named_parameters():
            writer.add_histogram(name, p.grad, step)

    name = "TensorBoard `add_histogram` of each gradient"
    return Variant(name, "plain", lambda: always(plain_step(work, log)), writer.flush)


def _wandb(work: Workload, folder: Path) -> Variant:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(x_disable_stats=True, console="off"))
    work.cleanup.callback(run.finish)
    step = plain_step(work, lambda: run.log({"step": 1}))

    @contextmanager
    def block() -> Iterator[Step]:
        run.watch(work.model, log="gradients", log_freq=1)
        yield step
        run.unwatch(work.model)

    return Variant('`wandb.watch(log="gradients", log_freq=1)`, offline', "plain", block)


def run_block(variant: Variant, steps: int) -> tuple[float, float, float, float]:
    """Return seconds a step, the fastest step, gradmedic's own account, and the process's CPU seconds a step."""
    with variant.block() as step:
        step()
        own = variant.own_seconds() if variant.own_seconds else 0.0
        cpu = time.process_time()
        marks = [time.perf_counter()]
        for _ in range(steps):
            step()
            marks.append(time.perf_counter())
        variant.settle()
        total = time.perf_counter() - marks[0]
        cpu = time.process_time() - cpu
        own = (variant.own_seconds() if variant.own_seconds else 0.0) - own
    return total / steps, min(np.diff(marks)), own / steps, cpu / steps


def measure(variants: list[Variant], bases: dict[str, Step], pairs: int, steps: int, seed: int) -> dict[str, Times]:
    """Run all pairs in random order."""
    shuffle = random.Random(seed)
    plan = [variant for variant in variants for _ in range(max(3, round(pairs * variant.share)))]
    shuffle.shuffle(plan)
    times = {variant.name: Times() for variant in variants}
    for done, variant in enumerate(plan):
        base = Variant(variant.base, "", lambda step=bases[variant.base]: always(step))
        kept = times[variant.name]
        for one in shuffle.sample([base, variant], 2):
            seconds, fastest, own, cpu = run_block(one, steps)
            (kept.base if one is base else kept.with_it).append(seconds)
            kept.cpu[one is variant].append(cpu)
            kept.fastest[one is variant] = min(kept.fastest[one is variant], fastest)
            if one is variant and variant.own_seconds:
                kept.own.append(own)
        if sys.stderr.isatty():
            print(f"\r{done + 1}/{len(plan)} pairs", end="", file=sys.stderr)
    return times


def interval(values: list[float], rng: np.random.Generator) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    drawn = rng.choice(np.array(values), size=(4000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def summarise(variants: list[Variant], times: dict[str, Times]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for variant in variants:
        kept = times[variant.name]
        ratios = [a / b for a, b in zip(kept.with_it, kept.base, strict=True)]
        added = [a - b for a, b in zip(kept.with_it, kept.base, strict=True)]
        rows.append(
            {
                "name": variant.name,
                "base": variant.base,
                "pairs": len(ratios),
                "base_ms": 1e3 * statistics.median(kept.base),
                "ms": 1e3 * statistics.median(kept.with_it),
                "added_us": 1e6 * statistics.median(added),
                "ratio": statistics.median(ratios),
                "interval": interval(ratios, rng),
                "cpu_ratio": statistics.median(b / a for a, b in zip(*kept.cpu, strict=True)),
                "ratio_of_fastest": kept.fastest[1] / kept.fastest[0],
                "fastest_added_us": 1e6 * (kept.fastest[1] - kept.fastest[0]),
                "own_us": 1e6 * statistics.median(kept.own) if kept.own else None,
                "bar": variant.bar,
            }
        )
    return rows


def show(title: str, rows: list[dict[str, Any]], missing: list[str]) -> None:
    heads = ("with", "against", "ms a step without → with", "ratio (95 %)", "of CPU time", "of the fastest", "added µs")
    heads += ("own account µs", "bar")
    print(f"\n### {title}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in rows:
        low, high = row["interval"]
        own = "" if row["own_us"] is None else f"{row['own_us']:.0f}"
        bar = "" if row["bar"] is None else f"{row['bar']:.2f}: {'met' if row['ratio'] <= row['bar'] else 'MISSED'}"
        print(
            f"| {row['name']} | {row['base']} | {row['base_ms']:.2f} → {row['ms']:.2f} | "
            f"**{row['ratio']:.3f}** ({low:.3f}–{high:.3f}, {row['pairs']} pairs) | {row['cpu_ratio']:.3f} | "
            f"{row['ratio_of_fastest']:.3f} | "
            f"{row['added_us']:.0f} | {own} | {bar} |"
        )
    for each in missing:
        print(f"\nLeft out, not installed: {each}")


def table(work: Workload, options: argparse.Namespace, pairs: int, steps: int, *, bars: bool) -> dict[str, Any]:
    """Time all variants of a workload, and print the table."""
    title = f"{work.name}: {work.tensors} tensors, {work.elements:,} elements, {type(work.optimizer).__name__}"
    with tempfile.TemporaryDirectory() as name, work.cleanup:
        folder = Path(name)
        bases = {"plain": plain_step(work), "clip_grad_norm_": plain_step(work, clip(work))}
        for _ in range(3):
            bases["plain"]()
        rows: list[dict[str, Any]] = []
        found, missing = ([], []) if options.no_peers else peers(work, folder, options.peer_share)
        first = watched(work, folder, "gm.watch(record)", "plain", 1.03 if bars else None)
        variants = [first, *found]
        rows += summarise(variants, measure(variants, bases, pairs, steps, options.seed))
        # A second attachment replaces the first: the treated variant gets a turn of its own.
        treated = watched(
            work, folder, "gm.watch(record) with clip.norm", "clip_grad_norm_", 1.0 if bars else None,
            transform=gm.clip.norm(1.0),
        )  # fmt: skip
        rows += summarise([treated], measure([treated], bases, pairs, steps, options.seed + 1))
        findings = {str(f.code) for monitor in work.monitors.values() for f in monitor.findings if f.severity != "info"}
        seen = work.monitors[first.name].steps_seen
        size = sum(file.stat().st_size for file in (folder / "gm.watch(record)").iterdir())
        show(title, rows, missing)
        print(f"\n{size / seen:,.0f} bytes a step in the run folder ({seen} steps); findings: {sorted(findings)}")
    return {"title": title, "rows": rows, "missing": missing, "bytes_per_step": size / seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--pairs", type=int, help="pairs of blocks for each row (default: 60, 12, 40, 20)")
    parser.add_argument(
        "--peer-share", type=float, default=0.3, help="share of the pairs for other tools (default 0.3)"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave other tools out")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures to this file too")
    parser.add_argument("--memory-child", choices=["plain", "watched"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory_child:
        memory_child(options.memory_child)
        return
    wanted = options.sections or list(SECTIONS)
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; load average at the start {load:.1f}"
    )
    results: dict[str, Any] = {}
    if "transformer" in wanted:
        results["transformer"] = table(make_transformer(), options, options.pairs or 60, 3, bars=True)
    if "large" in wanted:
        results["large"] = table(make_large_transformer(), options, options.pairs or 12, 3, bars=True)
    if "mlp" in wanted:
        results["mlp"] = table(make_mlp(), options, options.pairs or 40, 200, bars=False)
    if "tensors" in wanted:
        results["tensors"] = table(make_many_tensors(), options, options.pairs or 20, 5, bars=False)
        for row in results["tensors"]["rows"]:
            print(f"  {row['name']}: {row['added_us'] / 2000:.2f} µs a tensor")
    if "counts" in wanted:
        results["counts"] = count_table(make_transformer)
    if "memory" in wanted:
        results["memory"] = memory_table(Path(__file__), options.threads)
    if options.json:
        with suppress(TypeError):
            options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
