"""What module and graph probes cost at the default sampling: `python benchmarks/modules_cost.py [--pairs 20]`.

Two monitors take turns on one model in one process: one samples every step, the other none. A pair is a block of steps
of each, one right after the other in random order. The cost of a sampled step, over the time of a step that is not, is
divided by the 50 steps from one sample to the next: that is the share of training time that `modules="auto"` takes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import gradmedic as gm
from overhead_models import Workload, make_mlp, make_transformer

#: Steps between two samples by default, and the share of training time that the probes may take.
EVERY, BAR = 50, 0.03
BLOCK = 4


def make_cnn() -> Workload:
    """Four convolutions with batch norm on 32 images of 3 x 32 x 32."""
    torch.manual_seed(0)
    widths = (3, 32, 64, 64, 128)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(torch.randn(32, 3, 32, 32)), torch.randint(0, 10, (32,)))

    return Workload("CNN, 4 convolutions, 32 x 3 x 32 x 32", model, optimizer, loss)


def measure(work: Workload, pairs: int) -> tuple[float, float, float]:
    """Return seconds of a plain step, and the median and spread (quartiles' distance) of a sampled step's extra."""

    def step() -> None:
        work.optimizer.zero_grad()
        work.loss().backward()
        work.optimizer.step()

    never: dict[str, Any] = {"modules": None, "modules_every": 10**9}
    plain, extra = [], []
    for _ in range(pairs):
        blocks: list[tuple[bool, dict[str, Any]]] = [(True, {"modules_every": 1}), (False, never)]
        random.shuffle(blocks)
        times: dict[bool, float] = {}
        for sampled, options in blocks:
            with gm.watch(work.model, work.optimizer, record=None, **options):
                for _ in range(4):  # the first steps look at the wiring
                    step()
                times[sampled] = timed(step)
        plain.append(times[False])
        extra.append(times[True] - times[False])
    low, middle, high = statistics.quantiles(extra, n=4)
    return statistics.median(plain), middle, high - low


def timed(step: Callable[[], None]) -> float:
    """Return the seconds of one step, the fastest of a block."""
    best = float("inf")
    for _ in range(BLOCK):
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"| model | plain step, ms | sampled step costs more, ms (quartiles apart) | share at one in {EVERY} | bar |")
    print("|---|---|---|---|---|")
    for make in (make_transformer, make_cnn, make_mlp):
        work = make()
        plain, extra, spread = measure(work, options.pairs)
        share = extra / plain / EVERY
        print(
            f"| {work.name} | {1e3 * plain:.2f} | {1e3 * extra:.2f} ({1e3 * spread:.2f}) | {share:.2%} | "
            f"{BAR:.0%}{'' if share <= BAR else ' missed'} |"
        )


if __name__ == "__main__":
    main()
