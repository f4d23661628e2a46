"""What a transform has to know of other ranks: whether they decide too, their loss, that they decided the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.clip.base import Decision, needs_of
from gradmedic.errors import TransformError
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.replicas import Replicas
from gradmedic.stats.agreement import Agreement
from gradmedic.stats.collective import mean_over_ranks
from gradmedic.stats.distribution import Distribution

#: Where some rank does not treat, the others would wait for it, or its replica would part from theirs.
_ALONE = (
    "expected every rank to treat this model, and not all do; call gm.watch(..., transform=...) on every rank (what a "
    "guard on the loss decides, all ranks decide together, under DistributedDataParallel too)"
)
_UNEVEN = (
    "expected all ranks to make as many steps as each other, since a guard on the loss waits for all, and this loop "
    "runs inside join(); use a guard on the gradient there (gm.guard.skip_spikes('grad_norm'), "
    "gm.guard.skip_nonfinite()), or give every rank as many batches"
)
#: Said once where ranks that should have decided the same have not.
APART = (
    "ranks have not reached the same clipping factor: their copies of the model drift apart from here on; look for "
    "inputs of the transform that differ between ranks, and for process groups that gm.watch(groups=...) does not name"
)
#: Steps between two comparisons of what was decided.
CHECK_EVERY = 64


class Together:
    """Asks the other ranks on behalf of a transform.

    Args:
        agreement: with the other ranks.

    Attributes:
        apart: whether some rank has decided otherwise than another.
    """

    def __init__(self, agreement: Agreement) -> None:
        self.apart = False
        self._agreement = agreement
        self._replicas = Replicas()
        self._checks: list[_Check] = []

    def admit(self, probe: OptimizerProbe, parameters: Sequence[torch.Tensor], distribution: Distribution) -> None:
        """Raise TransformError where not all ranks treat the model."""
        if not self._all_here(probe, parameters, distribution):
            raise TransformError(_ALONE)

    def ask(self, probe: OptimizerProbe, parameters: Sequence[torch.Tensor], distribution: Distribution) -> None:
        """Raise RuntimeError where a rank has stopped since: the transform is then switched off."""
        if not self._all_here(probe, parameters, distribution):
            raise RuntimeError("another rank has stopped to watch, and gradients can no longer be treated together")

    def _all_here(
        self,
        probe: OptimizerProbe,
        parameters: Sequence[torch.Tensor],
        distribution: Distribution,
    ) -> bool:
        here = [distribution.ask() or not distribution.spread, probe.spans is None or probe.spans.ask()]
        replicas = None if distribution.spread else self._replicas.group(parameters)
        if replicas is not None and not self._replicas.uneven(parameters):
            # A rank that is ahead may have made the only step that there is, and left.
            here.append(self._agreement.decides(replicas))
        return all(here)

    def loss(
        self, transform: Any, loss: torch.Tensor | None, probe: OptimizerProbe, parameters: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        """Return the loss that the transform may know: the mean over ranks, or None where each would have its own.

        Raises:
            TransformError: the transform needs it, and not all ranks take part or make as many steps.
        """
        replicas = self._replicas.group(parameters)
        joint = probe.spread or probe.spans is not None or replicas is not None
        if "loss" not in needs_of(transform):
            return None if joint else loss
        if loss is None and not joint:
            return None
        if self._replicas.uneven(parameters):
            raise TransformError(_UNEVEN)
        among = replicas if probe.spans is None and not probe.spread else None
        if not self._agreement.together(among):
            raise TransformError(_ALONE)
        return mean_over_ranks(loss, among, device=parameters[0].device if parameters else None)

    def compare(
        self,
        decision: Decision,
        probe: OptimizerProbe,
        parameters: Sequence[torch.Tensor],
        distribution: Distribution,
    ) -> None:
        """Look, every so many steps, whether all ranks that should have reached the same factor have."""
        self._agreement.decided()
        waiting, self._checks = self._checks, []
        for check in waiting:
            same = check.same(self._agreement)
            if same is None:
                self._checks.append(check)
            self.apart |= same is False
        if probe.step % CHECK_EVERY:
            return
        scale, label = decision.scale, f"{probe.name}/{probe.step}"
        among: list[Any] = list(distribution.meshes)
        if probe.spans is not None and not scale.dim():
            among += [(each,) for each in probe.spans.groups]
        replicas = self._replicas.group(parameters)
        if not among and replicas is not None and not self._replicas.uneven(parameters):
            among = [replicas]
        self._checks += [_Check(mesh, label, scale) for mesh in among]
        if self._checks and scale.device.type == "cpu":
            waiting, self._checks = self._checks, []
            self.apart |= any([check.same(self._agreement) is False for check in waiting])


class _Check:
    """A factor on its way to the host, to be compared with what other ranks have written down."""

    def __init__(self, mesh: Any, label: str, scale: torch.Tensor) -> None:
        self._mesh, self._label = mesh, label
        self._value = scale.detach().to("cpu", non_blocking=True)
        self._event: Any = None
        if scale.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(scale.device))

    def same(self, agreement: Agreement) -> bool | None:
        """Return whether the other ranks have written the same; None as long as the value is not here."""
        if self._event is not None and not self._event.query():
            return None
        digest = hashlib.sha256(self._value.double().contiguous().numpy().tobytes()).hexdigest()
        return agreement.same(self._mesh, self._label, digest)
