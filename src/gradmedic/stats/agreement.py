"""Whether all ranks of a mesh take part, asked before a collective.

A collective that one rank never joins hangs the others, and people do write `if rank == 0: gm.watch(…)`. So each rank
is counted in the job's key-value store and waits a while for the others to be; the first verdict that is written there
holds for all. A rank that stops to watch, or pauses, says so there as well: the others look before each step. What it
has written before a backward pass, all have to read after it, since that pass is itself a collective.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

#: Ranks come to the end of their first backward pass together: what is not there by then does not watch.
PATIENCE = timedelta(seconds=20)

#: One server answers all ranks, some 20 us for each: of more ranks than these, each looks only every so many steps.
LOOKERS = 256

#: How often each set of ranks has been asked: every rank asks in the same order.
_asked: Counter[str] = Counter()


class Agreement:
    """What one watching of this process has agreed on with those of the other ranks."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._verdicts: dict[str, bool] = {}
        self._away = False
        self._returning = False
        self._names: dict[Any, tuple[str, int]] = {}
        self._looks: Counter[str] = Counter()
        self._last: dict[str, bool] = {}
        self._present: dict[str, bool] = {}
        self._decisions = 0
        self._left_at: set[int] = set()
        self._known_departures: dict[str, int] = {}

    def together(self, mesh: Any = None) -> bool:
        """Return whether every rank of a mesh (a tuple of process groups; None: of the job) takes part now.

        The same on all that do.

        Waits the first time only; later a look at the store, once a step.
        """
        key, size = self._name(mesh)
        if size < 2:
            return True
        if key not in self._verdicts:
            self._places[key] = f"gradmedic/{key}/{_asked[key]}"
            _asked[key] += 1
            self._verdicts[key] = _ask(self._places[key], size)
        if not self._verdicts[key]:
            return False
        if key not in self._present:  # once a step
            looks, self._looks[key] = self._looks[key], self._looks[key] + 1
            if looks % math.ceil(size / LOOKERS) == 0:
                self._last[key] = _store().add(f"{self._places[key]}/away", 0) == 0
            self._present[key] = self._last[key]
        return self._present[key]

    def stepped(self) -> None:
        """A step has ended: look anew at the next one."""
        self._present.clear()

    def _name(self, mesh: Any) -> tuple[str, int]:
        """Return (name of a set of ranks, how many they are)."""
        if mesh not in self._names:
            ranks = _ranks_of(mesh)
            if mesh is None:  # the job may be another one the next time
                return _name_of(ranks), len(ranks)
            self._names[mesh] = _name_of(ranks), len(ranks)
        return self._names[mesh]

    def same(self, mesh: Any, label: str, value: str) -> bool:
        """Return whether this is what the first rank of a mesh that came here has written under the label.

        Nobody waits: who comes first only writes. Asked of ranks that have agreed to take part; True otherwise.
        """
        key, size = self._name(mesh)
        place = self._places.get(key)
        if place is None or not self._verdicts.get(key):
            return True
        store, entry = _store(), f"{place}/same/{label}"
        try:
            first = bytes(store.compare_set(entry, "", value)).decode()
            # Each value is read once by each rank; the last one takes it away.
            if store.add(f"{entry}/read", 1) == size:
                store.delete_key(entry)
                store.delete_key(f"{entry}/read")
        except (RuntimeError, ValueError, NotImplementedError):  # the process group is gone, or cannot delete
            return True
        return first == value

    def decides(self, groups: tuple[Any, ...]) -> bool:
        """Return whether every rank makes the decision about a step that this one is about to make.

        For replicas of plain tensors, whose ranks only meet in their backward passes: one that lags may look when
        another has come back already, and one that is ahead may have left since. So departures are written down with
        the number of decisions that were made before. Ranks that have left at the same number (a pause that all of
        them make) have left together.
        """
        decision = self._decisions
        key, size = self._name(groups)
        if size < 2:
            return True
        if key not in self._verdicts:
            self.together(groups)
        if not self._verdicts[key]:
            return False
        store, place = _store(), self._places[key]
        known, total = self._known_departures.get(key, 0), store.add(f"{place}/departures", 0)
        for number in range(known + 1, total + 1):
            made, for_good = store.get(f"{place}/departure/{number}").decode().split()
            if int(made) > decision:
                break  # it has made this decision, and left since
            if for_good == "True" or int(made) not in self._left_at:
                return False
            self._known_departures[key] = number
        return True

    def decided(self) -> None:
        """The decision is made."""
        self._decisions += 1

    @property
    def refused(self) -> bool:
        """Whether some rank was waited for in vain."""
        return not all(self._verdicts.values())

    def leave(self, *, for_good: bool = True) -> None:
        """This rank takes no part any more, or, where it is not for good, for a while."""
        self._returning = False
        here, self._away = not self._away, True
        if not for_good:
            self._left_at.add(self._decisions)
        if here or for_good:
            self._write(lambda place: _note_departure(place, f"{self._decisions} {for_good}"))
        if here:
            self._count(1)

    def come_back(self) -> None:
        """It does again, from the next step on."""
        self._returning = self._away

    def before_backward(self) -> None:
        """A backward pass begins: whoever came back says so now.

        Said any earlier, it might be read by a rank that is still at the step before. By now all have begun this one's
        forward pass, and none looks before the backward pass has ended.
        """
        self._present.clear()
        if self._returning:
            self._away = self._returning = False
            self._count(-1)

    def _count(self, change: int) -> None:
        self._write(lambda place: _store().add(f"{place}/away", change))

    def _write(self, write: Callable[[str], Any]) -> None:
        for key, agreed in self._verdicts.items():
            if agreed:
                try:
                    write(self._places[key])
                except (RuntimeError, ValueError):  # the process group is gone, and with it all collectives
                    return


def _note_departure(place: str, note: str) -> None:
    number = _store().add(f"{place}/departures", 1)
    _store().set(f"{place}/departure/{number}", note)


def _name_of(ranks: list[int]) -> str:
    """Return a name for a set of ranks; two that begin alike and are as large differ in their last rank or step."""
    if len(ranks) < 64:
        return "-".join(map(str, ranks))
    return f"{len(ranks)} from {ranks[0]} to {ranks[-1]} by {ranks[1] - ranks[0]}"


def _ranks_of(mesh: Any) -> list[int]:
    from torch import distributed

    if isinstance(mesh, tuple):
        return sorted({rank for group in mesh for rank in distributed.get_process_group_ranks(group)})
    if mesh is not None:
        return sorted(int(rank) for rank in mesh.mesh.flatten().tolist())
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    return list(range(distributed.get_world_size()))


def _store() -> Any:
    from torch import distributed

    return distributed.distributed_c10d._get_default_store()


def _ask(place: str, size: int) -> bool:
    store = _store()
    # Counted by the server, not one key for each rank: that would be as many look-ups as the square of their number.
    if store.add(f"{place}/here", 1) == size:
        store.set(f"{place}/everyone", "here")
    try:
        store.wait([f"{place}/everyone"], PATIENCE)
        own = "yes"
    except RuntimeError:  # torch's DistStoreError: somebody is not there
        own = "no"
    return bytes(store.compare_set(f"{place}/verdict", "", own)) == b"yes"
