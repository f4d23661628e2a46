"""Cost of clipping: measuring everything, deciding and scaling, beside torch's own clip, which measures one number.

Run: python benchmarks/clip.py [--quick]

Candidates take turns within each round, in an order that turns with it, so that whatever else the machine does falls on
all of them alike; a ratio is the median, over the rounds, of the ratio to the first candidate in the same round.
Gradients are put back before each call, outside the time that is measured.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradmedic import clip
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.spec import Spec
from gradmedic.clip.summary import GradientSummary
from gradmedic.stats import gradient_stats, native_available
from stats import GPT2_SHAPES

Calls = dict[str, Callable[[], object]]
#: Operations that read a value of a tensor back to the host, or whose result's shape depends on values.
SYNCS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "_to_cpu", "unique", "masked_select"}


def parameters_of(shapes: Sequence[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    """Parameters with gradients of a joint norm of 1."""
    total = sum(torch.Size(shape).numel() for shape in shapes)
    held = []
    for shape in shapes:
        parameter = torch.nn.Parameter(torch.empty(shape))
        parameter.grad = torch.randn(shape) / total**0.5
        held.append(parameter)
    return held


class OurClip:
    """What a step costs without hooks and frames: statistics of every tensor, the decision, the scaling."""

    def __init__(self, parameters: Sequence[torch.Tensor], transform: Any, backend: str = "auto") -> None:
        self.gradients = [p.grad for p in parameters if p.grad is not None]
        self.transform, self.backend = transform, backend
        self.spec = Spec.of_names([str(at) for at in range(len(self.gradients))])
        self.state = transform.init(self.spec)
        self.step = 0

    @torch.no_grad()
    def __call__(self) -> None:
        table = gradient_stats(self.gradients, backend=self.backend)
        nonfinite = table.nan_count + table.inf_count
        summary = GradientSummary(self.spec, table.norm, nonfinite, step=self.step, max_abs=table.max_abs)
        decision, self.state = self.transform.update(summary, self.state)
        apply_operations(self.gradients, decision.operations, on_host=self.backend != "torch")
        self.step += 1


def measure(calls: Calls, rounds: int, before: Callable[[], object] = lambda: None) -> dict[str, list[float]]:
    """Return the milliseconds of every call of every candidate, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    gc.collect()
    gc.disable()
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            before()
            start = time.perf_counter()
            calls[name]()
            if turn:
                times[name].append((time.perf_counter() - start) * 1e3)
    gc.enable()
    return times


def report(title: str, times: dict[str, list[float]], bars: dict[str, float] | None = None) -> None:
    base = next(iter(times.values()))
    print(f"\n### {title}\n\n| | median ms | minimum ms | median ratio | bar |\n|---|---|---|---|---|")
    for name, values in times.items():
        ratio = statistics.median(value / other for value, other in zip(values, base, strict=True))
        bar = f"<= {bars[name]}" if bars and name in bars else ""
        print(f"| {name} | {statistics.median(values):.3f} | {min(values):.3f} | {ratio:.2f} | {bar} |")


def restorer(parameters: Sequence[torch.Tensor]) -> Callable[[], object]:
    """Put the gradients back, so that every call meets the same norm."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    kept = [gradient.clone() for gradient in gradients]
    return lambda: torch._foreach_copy_(gradients, kept)


def against_torch(title: str, shapes: Sequence[tuple[int, ...]], rounds: int) -> None:
    """(a) Statistics of every tensor and the clip, beside torch's clip alone."""
    for case, limit in (("not clipped", 1e3), ("clipped", 0.5)):
        parameters = parameters_of(shapes)
        name = f"gradmedic: statistics + norm({limit:g})"
        calls: Calls = {"torch clip_grad_norm_": lambda p=parameters, x=limit: torch.nn.utils.clip_grad_norm_(p, x)}
        calls[name] = OurClip(parameters, clip.norm(limit))
        calls["gradmedic.clip_grad_norm_"] = lambda p=parameters, x=limit: clip_in_place(p, x)
        report(f"{title}, {case}", measure(calls, rounds, restorer(parameters)), {name: 1.0})
        del parameters, calls


def clip_in_place(parameters: Sequence[torch.Tensor], limit: float) -> torch.Tensor:
    from gradmedic import clip_grad_norm_

    return clip_grad_norm_(parameters, limit)


def foreach_off_and_on(elements: int, rounds: int) -> None:
    """(b) torch's own clip with foreach off and on, beside ours; 100 tensors of equal size."""
    shapes = [(elements // 100,)] * 100
    for case, limit in (("not clipped", 1e3), ("clipped", 0.5)):
        parameters = parameters_of(shapes)
        calls: Calls = {
            f"torch, foreach={flag}": lambda f=flag, p=parameters, x=limit: torch.nn.utils.clip_grad_norm_(
                p, x, foreach=f
            )
            for flag in (False, True)
        }
        calls["gradmedic: statistics + norm"] = OurClip(parameters, clip.norm(limit))
        report(f"{elements / 1e6:g}M elements in 100 tensors, {case}", measure(calls, rounds, restorer(parameters)))
        del parameters, calls


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def host_syncs() -> None:
    """(c) Operations, and those that read a value back, of one step on the path of a device (taken on CPU tensors).

    `tolist()` and `.numpy()` are not seen by a dispatch mode; the package's tests forbid them on this path.
    """
    methods = {
        "norm(1.0)": clip.norm(1.0),
        'norm(percentile(95), per="tensor")': clip.norm(clip.percentile(95), per="tensor"),
        "autoclip()": clip.autoclip(),
        "median_clip()": clip.median_clip(),
        "zclip()": clip.zclip(),
        "adagc()": clip.adagc(),
        "chain(norm(1.0), zclip())": clip.chain(clip.norm(1.0), clip.zclip()),
    }
    print(
        "\n### One step on the path of a device, 50 tensors\n\n| | operations | host syncs | bar |\n|---|---|---|---|"
    )
    parameters = parameters_of([(100,)] * 50)
    theirs = _Counter()
    with theirs:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    print(f"| torch clip_grad_norm_ | {theirs.seen.total()} | {syncs_in(theirs.seen)} | |")
    for name, transform in methods.items():
        ours = OurClip(parameters, transform, backend="torch")
        ours()
        counter = _Counter()
        with counter:
            ours()
        print(f"| {name} | {counter.seen.total()} | {syncs_in(counter.seen)} | 0 |")


def syncs_in(seen: Counter[str]) -> int:
    return sum(count for name, count in seen.items() if name in SYNCS)


def updates(rounds: int, long: int) -> None:
    """(d) The decision alone, by window, early and late in a run: it does not grow with the steps seen."""
    print(f"\n### The decision alone, microseconds a step: the first {rounds} steps, and {rounds} after {long:,} more")
    print("\n| | window | early | late | late / early | bar |\n|---|---|---|---|---|---|")
    made: dict[str, Callable[[int], Any]] = {
        "norm(percentile(95))": lambda window: clip.norm(clip.percentile(95, window)),
        "norm(zscore(3))": lambda window: clip.norm(clip.zscore(3, window)),
        "autoclip()": lambda window: clip.autoclip(10, window),
    }
    for name, make in made.items():
        for window in (100, 10_000):
            early, late = _decision_times(make(window), rounds, long)
            print(f"| {name} | {window:,} | {early:.0f} | {late:.0f} | {late / early:.2f} | <= 1.2 |")


@torch.no_grad()
def _decision_times(transform: Any, rounds: int, long: int) -> tuple[float, float]:
    norms = torch.rand(1000, 1, dtype=torch.float64) + 0.5
    spec, none = Spec.of_names(["all"]), torch.zeros(1, dtype=torch.int64)
    state = transform.init(spec)
    times: list[float] = []
    for step in range(2 * rounds + long):
        summary = GradientSummary(spec, norms[step % 1000], none, step=step)
        start = time.perf_counter()
        _, state = transform.update(summary, state)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[:rounds]), statistics.median(times[-rounds:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds and small sizes: does it run at all?")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    rounds = 3 if quick else 31
    native = "native kernel" if native_available() else "no native kernel"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {native}, {rounds} rounds")
    if quick:
        against_torch(
            "3M fp32 elements in 148 tensors", [tuple(max(1, d // 6) for d in s) for s in GPT2_SHAPES], rounds
        )
    else:
        against_torch("124M fp32 elements in 148 tensors", GPT2_SHAPES, rounds)
    count = 1000 if quick else 10_000
    against_torch(f"{count:,} tensors of 100 fp32 elements", [(100,)] * count, rounds)
    for elements in (1_000_000,) if quick else (1_000_000, 10_000_000, 100_000_000):
        foreach_off_and_on(elements, rounds)
    host_syncs()
    updates(20 if quick else 200, 100 if quick else 5000)


if __name__ == "__main__":
    main()
