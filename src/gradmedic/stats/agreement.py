"""Whether all ranks of a mesh take part, asked before a collective.

A collective that one rank never joins hangs the others, and people do write `if rank == 0: gm.watch(…)`. So each rank
leaves its name in the job's key-value store and waits for the others' a while; the first verdict that is written there
holds for all. A rank that stops to watch, or pauses, says so there as well: the others look before each step. What it
has written before a backward pass, all have to read after it, since that pass is itself a collective.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

#: Ranks come to the end of their first backward pass together: what is not there by then does not watch.
PATIENCE = timedelta(seconds=20)

#: How often each set of ranks has been asked: every rank asks in the same order.
_asked: Counter[str] = Counter()


class Agreement:
    """What one watching of this process has agreed on with those of the other ranks."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._verdicts: dict[str, bool] = {}
        self._away = False
        self._returning = False

    def together(self, mesh: Any = None) -> bool:
        """Return whether every rank of a mesh (None: of the job) takes part now; the same on all that do.

        Waits the first time only; later a look at the store.
        """
        ranks = _ranks_of(mesh)
        if len(ranks) < 2:
            return True
        key = "-".join(map(str, ranks)) if len(ranks) < 64 else f"{len(ranks)} from {ranks[0]}"
        if key not in self._verdicts:
            self._places[key] = f"gradmedic/{key}/{_asked[key]}"
            _asked[key] += 1
            self._verdicts[key] = _ask(self._places[key], ranks)
        return self._verdicts[key] and _store().add(f"{self._places[key]}/away", 0) == 0

    @property
    def refused(self) -> bool:
        """Whether some rank was waited for in vain."""
        return not all(self._verdicts.values())

    def leave(self) -> None:
        """This rank takes no part any more, or for a while."""
        self._returning = False
        if not self._away:
            self._away = True
            self._count(1)

    def come_back(self) -> None:
        """It does again, from the next step on."""
        self._returning = self._away

    def before_backward(self) -> None:
        """A backward pass begins: whoever came back says so now.

        Said any earlier, it might be read by a rank that is still at the step before. By now all have begun this one's
        forward pass, and none looks before the backward pass has ended.
        """
        if self._returning:
            self._away = self._returning = False
            self._count(-1)

    def _count(self, change: int) -> None:
        for key, agreed in self._verdicts.items():
            if agreed:
                try:
                    _store().add(f"{self._places[key]}/away", change)
                except (RuntimeError, ValueError):  # the process group is gone, and with it all collectives
                    return


def _ranks_of(mesh: Any) -> list[int]:
    from torch import distributed

    if mesh is not None:
        return sorted(int(rank) for rank in mesh.mesh.flatten().tolist())
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    return list(range(distributed.get_world_size()))


def _store() -> Any:
    from torch import distributed

    return distributed.distributed_c10d._get_default_store()


def _ask(place: str, ranks: list[int]) -> bool:
    from torch import distributed

    store = _store()
    store.set(f"{place}/{distributed.get_rank()}", "here")
    try:
        store.wait([f"{place}/{rank}" for rank in ranks], PATIENCE)
        own = "yes"
    except RuntimeError:  # torch's DistStoreError: somebody is not there
        own = "no"
    return bytes(store.compare_set(f"{place}/verdict", "", own)) == b"yes"
