"""How often each class has been a target so far, and what a prediction that knows nothing else would cost."""

from __future__ import annotations

from collections.abc import Mapping

import torch

#: Vocabularies beyond this are not kept: their batches say little about how often a word comes.
MAX_CLASSES = 2**16


class Priors:
    """Adds up target counts by loss call, over the sampled batches."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], torch.Tensor] = {}

    def rename(self, modules: Mapping[str, str]) -> None:
        """Some modules have got another name: old -> new."""
        self._counts = {(modules.get(name, name), which): held for (name, which), held in self._counts.items()}

    def add(self, key: tuple[str, str], counts: torch.Tensor) -> torch.Tensor:
        """Add one batch's counts ([classes], or [2, outputs] for yes and no); returns all so far.

        Args:
            key: module, and which loss call.
            counts: on the loss's device.
        """
        if counts.numel() > MAX_CLASSES:
            return counts
        known = self._counts.get(key)
        if known is not None and known.shape == counts.shape and known.device == counts.device:
            counts = known + counts
        self._counts[key] = counts
        return counts

    def known(self, key: tuple[str, str], counts: torch.Tensor) -> torch.Tensor:
        """Return what has been counted so far, without this batch; its own counts where there is nothing yet."""
        found = self._counts.get(key)
        return found if found is not None and found.shape == counts.shape and found.device == counts.device else counts


def prior_entropy(counts: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of the distribution that counts estimate, a 0-d float64 tensor; no host sync.

    The plain estimate is too low by (classes seen - 1) / (2 N) to first order; that much is added.

    Args:
        counts: [classes], or [2, outputs], for which the mean over outputs is returned.

    References:
        G. A. Miller, Note on the bias of information estimates, 1955.
    """
    wide = counts.double() if counts.device.type != "mps" else counts
    total = wide.sum(0).clamp(min=1)
    entropy: torch.Tensor = torch.special.entr(wide / total).sum(0)
    return (entropy + ((wide > 0).sum(0) - 1).clamp(min=0) / (2 * total)).mean()
