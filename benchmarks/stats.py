"""Cost of the statistics beside torch's own norm, which every clipped training run already pays.

Run: python benchmarks/stats.py [--quick]

All candidates take turns within each round, so that whatever else the machine does falls on all of them alike; the
ratio is the median, over the rounds, of the ratio to `torch._foreach_norm` in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from gradmedic.stats import gradient_stats, native_available, norms

WIDTH, VOCABULARY, POSITIONS, LAYERS = 768, 50257, 1024, 12
#: The 148 parameters of GPT-2 small, 124,439,808 elements.
BLOCK_SHAPES = [
    (WIDTH,),  # ln_1.weight
    (WIDTH,),  # ln_1.bias
    (WIDTH, 3 * WIDTH),  # attn.c_attn.weight
    (3 * WIDTH,),  # attn.c_attn.bias
    (WIDTH, WIDTH),  # attn.c_proj.weight
    (WIDTH,),  # attn.c_proj.bias
    (WIDTH,),  # ln_2.weight
    (WIDTH,),  # ln_2.bias
    (WIDTH, 4 * WIDTH),  # mlp.c_fc.weight
    (4 * WIDTH,),  # mlp.c_fc.bias
    (4 * WIDTH, WIDTH),  # mlp.c_proj.weight
    (WIDTH,),  # mlp.c_proj.bias
]
GPT2_SHAPES = [(VOCABULARY, WIDTH), (POSITIONS, WIDTH), *BLOCK_SHAPES * LAYERS, (WIDTH,), (WIDTH,)]

Candidates = dict[str, Callable[[], object]]


def candidates(tensors: list[torch.Tensor], with_torch: bool) -> Candidates:
    parameters = [torch.nn.Parameter(t.detach()) for t in tensors]
    for parameter, tensor in zip(parameters, tensors, strict=True):
        parameter.grad = tensor
    calls: Candidates = {
        "torch._foreach_norm": lambda: torch._foreach_norm(tensors, 2),
        "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9),
    }
    if native_available():
        calls["native"] = lambda: gradient_stats(tensors, backend="native")
        calls["native, histogram"] = lambda: gradient_stats(tensors, histogram=True, backend="native")
        calls["native, norms"] = lambda: norms(tensors, backend="native")
    if with_torch:
        calls["torch"] = lambda: gradient_stats(tensors, backend="torch")
        calls["torch, histogram"] = lambda: gradient_stats(tensors, histogram=True, backend="torch")
        calls["torch, norms"] = lambda: norms(tensors, backend="torch")
    return calls


def measure(calls: Candidates, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of every call of every candidate, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def report(title: str, times: dict[str, list[float]], bars: dict[str, float]) -> None:
    base = times["torch._foreach_norm"]
    print(f"\n### {title}\n\n| | median ms | minimum ms | median ratio | bar |\n|---|---|---|---|---|")
    for name, values in times.items():
        ratio = statistics.median(value / other for value, other in zip(values, base, strict=True))
        bar = f"<= {bars[name]}" if name in bars else ""
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {ratio:.2f} | {bar} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the rounds, and the native backend only")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    rounds = 7 if quick else 21
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")

    large = [torch.randn(shape) * 1e-3 for shape in GPT2_SHAPES]
    times = measure(candidates(large, not quick), rounds)
    report("124M fp32 elements in 148 tensors", times, {"native": 1.0, "native, histogram": 2.5})
    del large

    small = [torch.randn(100) * 1e-3 for _ in range(10_000)]
    report("10,000 tensors of 100 fp32 elements", measure(candidates(small, not quick), rounds), {"native": 0.8})


if __name__ == "__main__":
    main()
