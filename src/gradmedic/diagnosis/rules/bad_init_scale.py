"""GM306 bad-init-scale: initial weights of a size that lets the signal grow or fade on its way through the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.init_chain import Chain, chain_of
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When the size of initial weights is a fault, by what it does to the signal."""

    growth: float = 10.0
    """rms of the last over that of the first hidden activations (rules.md: outside [0.1, 10])."""
    growth_certain: float = 1e3
    """The same, a fault whatever the loss does: it starts at a size that a whole run is spent on undoing."""
    oversized_certain: float = 100.0
    """The same where most layers are oversized."""
    fading: float = 1e-4
    """What is left of the differences between samples. Eight layers of torch's default initialisation train well, and
    leave 1e-3."""
    fading_undersized: float = 0.1
    """The same with harm, where most layers are undersized: N(0, 0.02) in narrow layers without normalisation."""
    undersized: float = 0.5
    """Share of layers with less than a quarter of the variance of torch's default."""
    fading_certain: float = 1e-6
    """The same whatever the loss does: near the resolution of float32 beside biases of ordinary size."""
    layers: int = 4
    """Layers that make a line."""
    r2: float = 0.7
    """The change is steady over depth, not one odd layer."""
    oversized: float = 0.5
    """Share of layers whose weights have more than four times the variance of every usual scheme (rules.md)."""
    saturated: float = 0.5
    """Share of activations at their limits, where bounded activations hide the growth."""
    saturated_layers: int = 2


class BadInitScale:
    """The first sampled step: sizes of weights, and of what reaches each layer.

    Only propagation counts: weights of an unusual size that a normalisation absorbs, or a factor in the forward pass
    takes back, do nothing.
    """

    code = "GM306"
    name = "bad-init-scale"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._chains: dict[str, Chain] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at the first sampled step, then every 10 tables, whenever the run breaks, and at the end."""
        name = view.frame.optimizer
        chain = self._chains.get(name)
        if chain is None:
            chain = None if view.final else chain_of(view.frame)
            if chain is None:
                return
            self._chains[name] = chain
        elif not (view.due(self.period) or view.harm.reason in ("diverged", "nonfinite")):
            return
        variant = self._variant(chain) or self._undersized(view, chain)
        if variant:
            yield self._draft(view, chain, variant)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all, where it rested on that."""
        return finding.params.get("certain") is True or still_harmed(finding, view)

    def _variant(self, chain: Chain) -> str:
        limits = self.thresholds
        oversized = chain.oversized >= limits.oversized
        if oversized and self._saturated(chain) >= max(1, 0.5 * len(chain.saturated)):
            return "saturating"
        if chain.growth > limits.growth and (oversized or self._straight(chain, chain.r2)):
            return "growing"
        # A sigmoid fades any signal, whatever the weights.
        fades = chain.fading < limits.fading and chain.growth < limits.growth and not chain.sigmoids
        return "fading" if fades and self._straight(chain, chain.fading_r2) else ""

    def _undersized(self, view: View, chain: Chain) -> str:
        """Whether a loss that does not fall is explained by weights that are small, and few layers that fade."""
        limits = self.thresholds
        small = chain.undersized >= limits.undersized and chain.fading < limits.fading_undersized
        return "fading" if small and view.harm.reason == "not_falling" and not chain.sigmoids else ""

    def _straight(self, chain: Chain, r2: float) -> bool:
        return chain.layers >= self.thresholds.layers and r2 >= self.thresholds.r2

    def _saturated(self, chain: Chain) -> int:
        return sum(each > self.thresholds.saturated for each in chain.saturated)

    def _certain(self, chain: Chain, variant: str) -> bool:
        limits = self.thresholds
        if variant == "growing":
            oversized = chain.oversized >= limits.oversized
            return chain.growth > (limits.oversized_certain if oversized else limits.growth_certain)
        if variant == "saturating":
            return self._saturated(chain) >= limits.saturated_layers
        return chain.fading < limits.fading_certain

    def _draft(self, view: View, chain: Chain, variant: str) -> Draft:
        limits, certain = self.thresholds, self._certain(chain, variant)
        severity: Severity = ("error" if certain else "warning") if view.harm else ("warning" if certain else "info")
        return Draft(
            severity=severity,
            confidence=0.9 if certain else (0.75 if view.harm else 0.4),
            step=chain.step,
            where=chain.modules,
            evidence=(
                Evidence("rms of the last over that of the first hidden activations", chain.growth, limits.growth),
                Evidence("differences between samples, last over first layer", chain.fading, limits.fading),
                Evidence("scale of the weights, over He initialisation (median)", chain.scale),
                Evidence("share of layers with oversized weights", chain.oversized, limits.oversized),
                *_saturation(chain, limits.saturated, variant),
            ),
            params=_params(view, chain, variant) | {"certain": certain},
            variant=variant,
        )


def _saturation(chain: Chain, limit: float, variant: str) -> tuple[Evidence, ...]:
    if variant != "saturating":
        return ()
    return (Evidence("share of saturated activations", max(chain.saturated), limit),)


def _params(view: View, chain: Chain, variant: str) -> dict[str, Any]:
    total = chain.fading if variant == "fading" else chain.growth
    depth = max(1, chain.layers - 1)
    return {
        "growth": chain.growth,
        "left": chain.fading,
        "per_layer": total ** (1 / depth) if total > 0 else math.nan,
        "layers": chain.layers,
        "scale": chain.scale,
        "saturated": 100 * max(chain.saturated, default=0.0),
        "first": chain.modules[0],
        "last": chain.modules[-1],
        "harm": view.harm.phrase,
        "loss_first": view.loss.first,
        "loss_recent": view.loss.recent,
    }
