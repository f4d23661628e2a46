"""Whether all ranks of a mesh take part, asked before the first collective.

A collective that one rank never joins hangs the others, and people do write `if rank == 0: gm.watch(…)`. So each rank
leaves its name in the job's key-value store and waits for the others' a while; the first verdict that is written there
holds for all.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

#: Ranks come to the end of their first backward pass together: what is not there by then does not watch.
PATIENCE = timedelta(seconds=20)

_attached = 0
_verdicts: dict[Any, bool] = {}


def attached() -> None:
    """Another watching of this process begins: the next collective asks anew. All ranks must watch as many times."""
    global _attached
    _attached += 1
    _verdicts.clear()


def all_take_part(mesh: Any) -> bool:
    """Return whether every rank of a mesh watches; the same on all that do. Waits the first time only."""
    if mesh not in _verdicts:
        _verdicts[mesh] = _ask(mesh)
    return _verdicts[mesh]


def refused() -> bool:
    """Whether some rank was waited for in vain."""
    return not all(_verdicts.values())


def _ask(mesh: Any) -> bool:
    from torch import distributed

    ranks = sorted(int(rank) for rank in mesh.mesh.flatten().tolist())
    if len(ranks) == 1:
        return True
    store: Any = distributed.distributed_c10d._get_default_store()
    place = f"gradmedic/{_attached}/{'-'.join(map(str, ranks)) if len(ranks) < 64 else hash(tuple(ranks))}"
    store.set(f"{place}/{distributed.get_rank()}", "here")
    try:
        store.wait([f"{place}/{rank}" for rank in ranks], PATIENCE)
        own = b"yes"
    except RuntimeError:  # torch's DistStoreError: somebody is not there
        own = b"no"
    verdict = store.compare_set(f"{place}/verdict", "", own.decode())
    return bytes(verdict) == b"yes"
