"""Runs a function on several ranks at once: processes of one gloo group on loopback, forked from one that has torch."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

#: What ranks import sooner or later, and what would take each of them seconds.
IMPORTS = [
    *("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.nn.parallel"),
    *("numpy", "pytest", "pyarrow.ipc", "gradmedic", "gradmedic.monitor", "gradmedic.watching", "gradmedic.record"),
    *("gradmedic.diagnosis", "gradmedic.clip", "gradmedic.guard"),
]


def run_on_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    world: int = 2,
    timeout: float = 250.0,
    missing: Collection[int] = (),
) -> list[Any]:
    """Return what `function(*arguments)` returns on each rank; it must be importable and its results picklable.

    Ranks that are `missing` are expected to end without a word; None stands for what they would have returned.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "meeting")
        ranks = [
            context.Process(target=_rank, args=(function, arguments, rank, world, str(meeting), results, timeout))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        try:
            found = dict(results.get(timeout=timeout) for _ in range(world - len(missing)))
        finally:
            for rank in ranks:
                rank.join(10)
                if rank.is_alive():
                    rank.kill()
    failures = [value for value in found.values() if isinstance(value, _Failure)]
    if failures:
        raise AssertionError("\n".join(failure.text for failure in failures))
    return [found.get(rank) for rank in range(world)]


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _rank(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    world: int,
    meeting: str,
    results: Any,
    timeout: float,
) -> None:
    import torch
    from torch import distributed

    gc.freeze()  # neither a collection nor a search for wrappers goes through all that has been imported
    faulthandler.dump_traceback_later(timeout - 5)  # says where a rank waits that never ends
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME=_loopback())
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        answer: Any = function(*arguments)
    except BaseException:
        answer = _Failure(f"rank {rank}: {traceback.format_exc()}")
    results.put((rank, answer))
    results.close()
    results.join_thread()
    os._exit(0)


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return "lo" if "lo" in names else "lo0"
