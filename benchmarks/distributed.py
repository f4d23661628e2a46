"""What a recorded step costs on two ranks: `python benchmarks/distributed.py [--pairs 12]`.

Two gloo processes on loopback train a transformer of 12 layers under DistributedDataParallel and under fully_shard.
Blocks of steps with and without watching take turns in random order, in one process and on one model; a pair is one of
each. Beside it, what a loop of `full_tensor()` norms over the parameters adds to a step. The figure is the median over
pairs of the added time over the time of a plain step, on rank 0; a block ends on both ranks before it is read.

One monitor watches from the first block to the last, with its hooks gone between its blocks. Its first steps, of which
more is looked at than of later ones, come before them. What a step adds at which the local gradients are looked at as
well (one in 50) is said apart, from steps of another monitor.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradmedic as gm

BAR = 0.05
WARM_UP, SAMPLED = 20, 2
BLOCK, WIDTH, LAYERS, LENGTH, BATCH, WORDS = 3, 192, 12, 64, 8, 512


class Transformer(nn.Module):
    """A language model of ordinary proportions: the work of a step grows as its parameters do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def wrapped(scheme: str) -> nn.Module:
    torch.manual_seed(0)
    model = Transformer()
    if scheme == "DDP":
        return DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def seconds_of(work: Callable[[], None], steps: int = BLOCK) -> float:
    distributed.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        work()
    distributed.barrier()
    return (time.perf_counter() - began) / steps


def full_tensor_norms(model: nn.Module) -> None:
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        float(whole.norm())


def measure(scheme: str, pairs: int) -> dict[str, float]:
    model = wrapped(scheme)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1))

    def step(look: Callable[[], None] | None = None) -> None:
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if look is not None:
            look()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    order = random.Random(0)
    plain, watched, looped, sampled = [], [], [], []
    for _ in range(max(3, pairs // 4)):  # its first steps are all sampled ones
        times = {}
        for kind in order.sample(["plain", "sampled"], 2):
            with gm.watch(model, optimizer, modules=None) if kind == "sampled" else nullcontext():
                step()  # attaching is not part of a step
                times[kind] = seconds_of(step, SAMPLED)
        sampled.append(times["sampled"] / times["plain"] - 1)
    monitor = gm.watch(model, optimizer, modules=None)
    for _ in range(WARM_UP):
        step()
    away = ExitStack()
    away.enter_context(monitor.paused())
    for _ in range(pairs):
        times = {}
        for kind in order.sample(["plain", "watched", "looped"], 3):
            if kind == "watched":
                away.close()
                step()  # nor is coming back
                times[kind] = seconds_of(step)
                away.enter_context(monitor.paused())
            else:
                look = (lambda: full_tensor_norms(model)) if kind == "looped" else None
                times[kind] = seconds_of(lambda look=look: step(look))
        plain.append(times["plain"])
        watched.append(times["watched"] / times["plain"] - 1)
        looped.append(times["looped"] / times["plain"] - 1)
    away.close()
    monitor.close()
    return {
        "step": statistics.median(plain),
        "watched": statistics.median(watched),
        "looped": statistics.median(looped),
        "sampled": statistics.median(sampled),
        "low": statistics.quantiles(watched, n=4)[0],
        "high": statistics.quantiles(watched, n=4)[2],
    }


def _rank(rank: int, meeting: str, pairs: int, results: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{meeting}", rank=rank, world_size=2)
    for scheme in ("DDP", "fully_shard"):
        found = measure(scheme, pairs)
        if rank == 0:
            results.put((scheme, found))
    distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12, metavar="N", help="blocks of each kind (12)")
    parser.add_argument("--port", default="29631", help="of the meeting on loopback (29631)")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, args.port, args.pairs, results)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    print(f"{'':14}{'plain step':>12}{'watched':>10}{'quartiles':>18}{'full_tensor loop':>19}{'sampled step':>14}")
    for _ in range(2):
        scheme, found = results.get()
        quartiles = f"{found['low']:+.1%} to {found['high']:+.1%}"
        verdict = "met" if found["watched"] <= BAR else "missed"
        print(
            f"{scheme:14}{found['step'] * 1e3:9.1f} ms{found['watched']:+10.1%}{quartiles:>18}{found['looped']:+19.1%}"
            f"{found['sampled']:+14.1%}   bar {BAR:.0%}: {verdict}"
        )
    for rank in ranks:
        rank.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
