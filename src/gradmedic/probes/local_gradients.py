"""Gradients of this rank alone, before they are reduced over ranks: which rank's are out of the ordinary.

On sampled steps only, a hook on each parameter measures its gradient at the moment when autograd has added the last
part to it. The reducer of DistributedDataParallel, and `fully_shard`'s, take it from there. A communication hook would
see the same; but it can be registered only once and never taken off, and would forbid the user's own.

What was reduced already is no rank's own: where gradients of an earlier pass of this step were reduced, or some of an
earlier step are still there, they are not taken for local ones.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from gradmedic.isolation import Isolation, part
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.unsharded import added_before, gathered_weights, whole_weight
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.process_rank import several_ranks
from gradmedic.roster import Roster
from gradmedic.stats import gradient_stats
from gradmedic.stats.mesh_layout import any_distributed, is_distributed
from gradmedic.stats.parts import visible_gradient
from gradmedic.stats.transfer import moved
from gradmedic.types import Backend

_FIRST_STEPS = 3
#: A gradient whose norm is, to this share, what was seen of it last has not been reduced since.
_SAME = 1e-6


class LocalGradients:
    """Measures the gradients of this rank on sampled steps; in a job of one process it does nothing.

    Args:
        roster: the watched models.
        fleet: the optimizers whose tensors are measured.
        options: how to watch. Sampled are the first three steps, 4, 8, 16 … until the first `modules_every`, one in
            each `modules_every` after that, and those right after trouble; a step without a table only then.
        isolation: what is switched off when it fails.
    """

    def __init__(
        self,
        roster: Roster,
        fleet: Fleet,
        options: WatchOptions,
        isolation: Isolation,
    ) -> None:
        self.isolation = isolation
        self._roster, self._fleet, self._options = roster, fleet, options
        self._samples: dict[int, LocalSample] = {}
        self._blocks: weakref.WeakKeyDictionary[OptimizerProbe, int] = weakref.WeakKeyDictionary()

    @part("local gradients")
    def before_backward(self) -> None:
        """A backward pass begins: look at the gradients it makes, if its step is sampled."""
        if not several_ranks() or _autograd_is_compiled():
            return
        for probe in self._fleet.probes:
            sample = self._samples.get(id(probe))
            if sample is None and self._due(probe):
                sample = self._samples[id(probe)] = LocalSample(self._options.backend, self.isolation)
            if sample is not None:
                sample.watch(list(probe.by_size()), lambda: gathered_weights(self._roster.models.values()))
                sample.check(probe.by_size())

    def _due(self, probe: OptimizerProbe) -> bool:
        step = probe.step
        if self._options.shared(step):  # the same steps on all ranks
            every = self._options.modules_every
            block, doubled = step // every, step < every and not step & (step - 1)
            if step < _FIRST_STEPS or doubled or self._blocks.get(probe) != block:
                self._blocks[probe] = block
                return True
        return bool(self._options.triggered(step))

    @part("local gradients")
    def give(self, probe: OptimizerProbe, pending: PendingFrame) -> None:
        """Put what was measured into the frame of a step that has ended."""
        sample = self._samples.pop(id(probe), None)
        if sample is None:
            return
        sample.stop()
        norms, nonfinite, positions = sample.result(probe.keys)
        if norms is None or nonfinite is None:
            return
        if pending.loss_scale is not None:
            norms = norms / moved(pending.loss_scale, norms.device, norms.dtype)
        pending.vectors["local_norm"] = (norms, positions)
        pending.vectors["local_nonfinite"] = (nonfinite, positions)

    def drop(self, probe: OptimizerProbe) -> None:
        """The step belongs to no frame of its own: its gradients were used as they came."""
        sample = self._samples.pop(id(probe), None)
        if sample is not None:
            sample.stop()

    def stop(self) -> None:
        """Take all hooks off."""
        for sample in self._samples.values():
            sample.stop()
        self._samples.clear()


class LocalSample:
    """The local gradients of one step of one optimizer.

    Args:
        backend: which statistics backend.
        isolation: what is switched off when it fails.
    """

    def __init__(self, backend: Backend, isolation: Isolation) -> None:
        self.isolation = isolation
        self._backend: Backend = backend
        self._handles: list[Any] = []
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # norm and non-finite elements, each [1]
        self._own: dict[int, torch.Tensor] = {}  # whether it was this rank's own so far, bool [1]
        self._hooked: set[int] = set()
        self._divided: set[int] = set()

    def watch(self, parameters: Sequence[torch.Tensor], gathered: Callable[[], Mapping[int, Any]]) -> None:
        """Put a hook on each parameter that has none yet, or on the gathered weight that stands for it in the graph.

        Args:
            parameters: what the optimizer has.
            gathered: returns the holders of divided weights, by the parameter's id; asked where there are any. Before
                the first forward pass there are no gathered weights.
        """
        missing = [each for each in parameters if id(each) not in self._hooked and each.requires_grad]
        holders = gathered() if any_distributed(missing) else {}
        for parameter in missing:
            holder = holders.get(id(parameter))
            leaf = parameter if holder is None else whole_weight(holder)
            if leaf is None or is_distributed(leaf) or leaf.is_meta or not (leaf.requires_grad and leaf.is_leaf):
                continue
            if holder is not None:
                self._divided.add(id(parameter))
            self._hooked.add(id(parameter))
            hook = self._hook(id(parameter), holder)
            self._handles.append(leaf.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def _hook(self, key: int, holder: Any) -> Callable[[torch.Tensor], None]:
        return lambda leaf: self._measure(key, leaf, holder)

    @part("local gradients")
    def _measure(self, key: int, leaf: torch.Tensor, holder: Any) -> None:
        if leaf.grad is None:  # used up by a hook of the user's own
            return
        gradient = leaf.grad.detach()
        earlier = None if holder is None else added_before(holder)
        if earlier is not None:
            gradient = earlier.detach() + gradient
        table = gradient_stats([gradient], backend=self._backend)
        self._seen[key] = (table.norm, table.nan_count + table.inf_count)

    def check(self, parameters: Iterable[torch.Tensor]) -> None:
        """A backward pass begins: note whose gradient is not what was seen of it last, or nothing at the first."""
        held = [(id(each), gradient) for each in parameters if (gradient := visible_gradient(each)) is not None]
        if not held:
            return
        now = gradient_stats([gradient for _, gradient in held], backend=self._backend).norm
        for at, (key, _) in enumerate(held):
            value = now[at : at + 1]
            before = self._seen.get(key) if key not in self._divided else None
            expected = torch.zeros_like(value) if before is None else before[0].to(value.device)
            same = (value - expected).abs() <= _SAME * expected
            self._own[key] = same & self._own[key].to(same.device) if key in self._own else same

    def stop(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def result(self, keys: Iterable[int]) -> tuple[torch.Tensor | None, torch.Tensor | None, list[int]]:
        """Return what was measured of the tensors with these ids, in their order.

        Returns:
            (norms float64 [M], non-finite elements float64 [M], positions [M] among the keys): NaN where a gradient was
            not this rank's own. None in place of both where nothing was measured.
        """
        found = [(at, key) for at, key in enumerate(keys) if key in self._seen]
        if not found:
            return None, None, []
        device = self._seen[found[0][1]][0].device
        norms = torch.cat([self._seen[key][0].to(device) for _, key in found])
        counts = torch.cat([self._seen[key][1].to(device) for _, key in found]).to(norms.dtype)
        unsure = [self._own.get(key) for _, key in found]
        if any(each is not None for each in unsure):
            yes = torch.ones(1, dtype=torch.bool, device=device)
            own = torch.cat([yes if each is None else each.to(device) for each in unsure])
            if device.type == "cpu" and not bool(own.any()):
                return None, None, []
            norms, counts = (torch.where(own, values, torch.nan) for values in (norms, counts))
        return norms, counts, [at for at, _ in found]


def _autograd_is_compiled() -> bool:
    """Whether the backward pass is traced: a new hook would have it traced anew."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))
