"""What a recorded step costs on many ranks, on paper and by simulation: `python benchmarks/scale.py [--quick]`.

Three models, on 8 to 16,384 ranks. Each figure says where it comes from:

- counted: collectives, their bytes and looks into the job's store, of the real code on a simulated process group
  (torch's "fake" backend, whose collectives do nothing), for as many tensors as the model has;
- measured: the processor time of our own code on this CPU for as many tensors, with little in each; and the store's
  time for one look on loopback;
- computed: the time of collectives and of reading the elements, from the latencies and bandwidths that are named below.

Nothing was run on 8 accelerators, let alone on 16,384.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed, nn

import gradmedic as gm
from gradmedic.stats import agreement
from gradmedic.stats.collective import Collective

STEP, BAR = 10.0, 0.005
#: Assumed, and not measured: one hop between two nodes, what a rank sends per second, what a GPU reads per second.
HOP, WIRE, MEMORY = 15e-6, 25e9, 2e12
#: Weights, gradients and Adam's moments, bytes an element; memory of a rank. What does not fit is not listed.
STATE, ROOM = 16, 80e9
#: The operations of the device path read a gradient about so often; its bytes are those of bf16 gradients in fp32.
PASSES, BYTES = 4, 4


@dataclass(frozen=True)
class Model:
    """A published architecture: elements, and tensors."""

    name: str
    elements: float
    tensors: int
    source: str


MODELS = (
    Model("1B", 1.24e9, 16 * 9 + 2, "Llama 3.2 1B: 16 layers of 9 tensors, tied embedding"),
    Model("70B", 70.6e9, 80 * 9 + 3, "Llama 3 70B: 80 layers of 9 tensors (arXiv:2407.21783)"),
    Model("1T", 1.008e12, 128 * 12 + 4, "GPT, 128 layers of 12 tensors, width 25,600 (arXiv:2104.04473)"),
)
RANKS = (8, 64, 1024, 4096, 16384)


@dataclass
class Count:
    """What one optimizer step has taken."""

    kinds: list[str] = field(default_factory=list)
    bytes: int = 0
    looks: int = 0
    seconds: float = 0.0


class Looked:
    """A store that counts looks, and answers that all are here."""

    looks = 0

    def add(self, key: str, amount: int) -> int:
        Looked.looks += amount == 0
        return 0

    def set(self, key: str, value: str) -> None:
        """Nobody reads it."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Whatever a rank has decided, the others have."""
        return value.encode()

    def delete_key(self, key: str) -> bool:
        """There is none."""
        return False


def simulate(tensors: int, world: int, *, steps: int, transform: Any, every: int, backend: str) -> list[Count]:
    """Return what each of the last steps of a sharded model has taken on one of `world` simulated ranks."""
    import torch.testing._internal.distributed.fake_pg  # makes the "fake" backend known
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    distributed.init_process_group("fake", store=distributed.HashStore(), rank=0, world_size=world)
    counts: list[Count] = []
    store, ask, reduce = agreement._store, agreement._ask, Collective._reduce
    agreement._ask, agreement._store = lambda place, size: True, Looked

    def counting(self: Collective, values: torch.Tensor, operation: Any) -> torch.Tensor:
        counts[-1].kinds.append("MAX" if operation == distributed.ReduceOp.MAX else "SUM")
        counts[-1].bytes += values.numel() * values.element_size()
        return reduce(self, values, operation)

    Collective._reduce = counting  # type: ignore[method-assign]
    try:
        mesh = init_device_mesh("cpu", (world,))
        model = nn.Module()
        for at in range(tensors):
            value, gradient = (
                DTensor.from_local(
                    torch.randn(64), mesh, [Shard(0)], run_check=False, shape=torch.Size([64 * world]), stride=(1,)
                )
                for _ in range(2)
            )
            parameter = nn.Parameter(value)
            parameter.grad = gradient
            model.register_parameter(f"tensor_{at}", parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with gm.watch(
            model, optimizer, transform=transform, every=every, modules=None, backend=backend, rules=[]
        ) as monitor:
            for _ in range(steps):
                counts.append(Count(looks=Looked.looks))
                watcher = monitor._watcher
                began = time.process_time()
                watcher.before_step(optimizer, (), {})  # the optimizer's own work is not ours
                watcher.after_step(optimizer)
                counts[-1].seconds = time.process_time() - began
                counts[-1].looks = Looked.looks - counts[-1].looks
            assert not monitor.isolation.off, monitor.isolation.off
    finally:
        agreement._store, agreement._ask, Collective._reduce = store, ask, reduce  # type: ignore[method-assign]
        distributed.destroy_process_group()
    return counts


def look_seconds(looks: int = 2000) -> tuple[float, float]:
    """Return (time of one look into a TCP store on loopback, processor time of its server for one look)."""
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    client = context.Process(target=_looking, args=(server.port, looks, results))
    client.start()
    before = time.process_time()
    found = results.get()
    spent = (time.process_time() - before) / looks
    client.join()
    return found, spent


def _looking(port: int, looks: int, results: Any) -> None:
    store = distributed.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    store.add("key", 1)
    times = []
    for _ in range(looks):
        began = time.perf_counter()
        store.add("key", 0)
        times.append(time.perf_counter() - began)
    results.put(statistics.median(times))


def collective_seconds(calls: int, size: int, world: int) -> float:
    """Return the computed time of all-reduces along a tree: two passes of log2(world) hops, and twice the bytes."""
    return calls * 2 * math.ceil(math.log2(world)) * HOP + 2 * size / WIRE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: counts are the same, times are coarse")
    args = parser.parse_args()
    torch.set_num_threads(1)
    steps = 20 if args.quick else 58
    look, served = look_seconds()
    print(
        f"a look into the store: {look * 1e6:.0f} us (measured, loopback); its server: {served * 1e6:.0f} us of CPU\n"
    )
    print("Counted, and host time measured (median of steps with a table, without a histogram)")
    print(f"{'model':6}{'tensors':>8}{'way':>22}{'collectives':>16}{'kB':>8}{'looks':>7}{'host, ms':>10}")
    taken: dict[tuple[str, str], Count] = {}
    for model in MODELS:
        for way, transform, every, backend in (
            ("table", None, 1, "auto"),
            ("table, clip.norm", gm.clip.norm(1e9), 1, "auto"),
            ("table, device path", None, 1, "torch"),
            ("norms only", None, 3, "auto"),
            ("norms, device path", None, 3, "torch"),
        ):
            counts = simulate(model.tensors, 64, steps=steps, transform=transform, every=every, backend=backend)
            # Steps without a weight norm, and without anything read for a table that comes next.
            last = counts[16::3] if way.startswith("norms") else counts[17::8]
            count = last[0]
            count.seconds = statistics.median(each.seconds for each in last)
            taken[model.name, way] = count
            print(
                f"{model.name:6}{model.tensors:8}{way:>22}{' '.join(count.kinds):>16}{count.bytes / 1e3:8.1f}"
                f"{count.looks:7}{count.seconds * 1e3:10.2f}",
                flush=True,
            )
    few, many = (
        simulate(146, world, steps=20, transform=None, every=1, backend="auto")[17] for world in (RANKS[0], RANKS[-1])
    )
    same = (few.kinds, few.bytes) == (many.kinds, many.bytes)
    print(f"\nthe same on 8 and on 16,384 simulated ranks: {'yes' if same else 'NO'}")
    print(
        f"\nComputed, ms a step of {STEP:.0f} s (hop {HOP * 1e6:.0f} us, {WIRE / 1e9:.0f} GB/s a rank, memory "
        f"{MEMORY / 1e12:.0f} TB/s, {PASSES} passes, {BYTES} bytes an element): elements + collectives + store + host"
    )
    print(f"{'model':6}{'ranks':>8}{'table':>34}{'norms only':>34}{'every':>7}{'share':>8}")
    for model in MODELS:
        for world in (each for each in RANKS if model.elements * STATE / each <= ROOM):
            full = parts_of(model, world, taken[model.name, "table, device path"], served)
            norms = parts_of(model, world, taken[model.name, "norms, device path"], served)
            every = next((n for n in (1, 2, 5, 10, 50) if share_of(full, norms, n) <= BAR), 0)
            shown = [
                "{:.1f}+{:.2f}+{:.1f}+{:.1f} = {:.1f}".format(*(1e3 * p for p in (*x, sum(x)))) for x in (full, norms)
            ]
            share = share_of(full, norms, every or 50)
            print(f"{model.name:6}{world:8,}{shown[0]:>34}{shown[1]:>34}{every or '> 50':>7}{share:8.2%}", flush=True)
    return 0


def parts_of(model: Model, world: int, count: Count, served: float) -> tuple[float, float, float, float]:
    """Return seconds of a step: elements, collectives, looks (the last of all ranks is answered last), own code."""
    each = math.ceil(world / agreement.LOOKERS)
    return (
        model.elements / world * BYTES * PASSES / MEMORY,
        collective_seconds(len(count.kinds), count.bytes, world),
        count.looks * world * served / each,
        count.seconds,
    )


def share_of(full: tuple[float, ...], norms: tuple[float, ...], every: int) -> float:
    """Return the share of a step, with a table every so many steps."""
    return (sum(full) + (every - 1) * sum(norms)) / every / STEP


if __name__ == "__main__":
    raise SystemExit(main())
