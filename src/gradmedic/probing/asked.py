"""Probes on request: what a monitor offers to a training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradmedic.frame import Frame
from gradmedic.isolation import Isolation, part
from gradmedic.probing.result import ProbeResult
from gradmedic.probing.target import Target

if TYPE_CHECKING:
    from gradmedic.probes.watcher import StepWatcher


class Probing:
    """A monitor that can be asked for probes."""

    _watcher: StepWatcher

    @property
    def isolation(self) -> Isolation:
        """Which of our own parts are switched off."""
        raise NotImplementedError

    @property
    def latest(self) -> Frame | None:
        """The last step's frame."""
        raise NotImplementedError

    def _event(self, event: dict[str, Any]) -> None:
        raise NotImplementedError

    def probe(
        self,
        loss_of: Callable[..., Any],
        *batch: torch.Tensor,
        only: str | Sequence[str] | None = None,
        seconds: float = 10.0,
    ) -> list[ProbeResult]:
        """Make small experiments on the model, which is afterwards what it was, bit by bit.

        What they find goes into the record and into the diagnosis. They cost about 25 forward passes, and up to 400
        small training steps on a copy of the weights; the model takes twice its memory meanwhile. To be called from the
        training loop, best between `backward()` and `optimizer.step()`.

        Args:
            loss_of: called with the batch; returns its loss, a tensor of one element, lower being better.
            batch: inputs, and last the targets, each with samples along its first dimension. Without it only the "line"
                and "overfit" probes can be made.
            only: names of probes: "line" (the loss along the step that the optimizer makes), "batch" (of the batch
                beside itself), "input" (with the inputs of other samples), "future" (do predictions depend on later
                inputs?), "overfit" (can one batch be learned by heart?); None for all.
            seconds: bound on the time of the overfit probe.

        Returns:
            One result for each; one that could not be made says what it needs. Reads losses back from the device.

        Raises:
            InputError: no such probe, or something else than a loss was returned.

        Example:
            >>> import torch, gradmedic as gm
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> x, y = torch.randn(8, 2), torch.randn(8, 1)
            >>> with gm.watch(model, optimizer) as monitor:
            ...     found = monitor.probe(lambda x, y: (model(x) - y).square().mean(), x, y, only="batch")
            >>> found[0].verdict
            'mean'
        """
        from gradmedic.probing.experiments import run_probes  # with everything that training alone never needs

        latest = self.latest
        results = run_probes(self._probe_target(loss_of, batch, latest), only, seconds)
        step, optimizer = (0, "") if latest is None else (latest.step, latest.optimizer)
        self._keep_probes([each.to_event(step, optimizer) for each in results])
        return results

    def _probe_target(self, loss_of: Callable[..., Any], batch: Sequence[torch.Tensor], latest: Frame | None) -> Target:
        scaled = latest is not None and latest.loss_scale is not None
        watched = self._watcher
        return Target(
            loss_of,
            tuple(batch),
            list(watched.models.values()),
            watched.bare_parameters,
            watched.optimizers,
            None if latest is None else latest.clip_threshold,
            fresh_gradients=not scaled,
        )

    @part("probe")
    def _keep_probes(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self._event(event)
