"""How the gradient is spread over the layers of a run: who carries most of it, how neighbours compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np
import numpy.typing as npt

from gradmedic.facts import Facts
from gradmedic.frame import SEEN, Frame

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Flow:
    """The spread of one optimizer's gradients over its layers.

    Attributes:
        shares: layers and their mean part of the squared norm, in [0, 1], the largest first.
        ratio: median over neighbouring layers of the rms of a layer's weight gradients over that of the layer after
            it; None with fewer than two layers.
        steepest: the pair (layer, next layer, ratio) whose ratio is farthest from 1.
    """

    shares: tuple[tuple[str, float], ...] = ()
    ratio: float | None = None
    steepest: tuple[str, str, float] | None = None


@dataclass(frozen=True, slots=True)
class _Weight:
    layer: str
    log_rms: float
    shape: tuple[int, ...]


@dataclass(slots=True)
class FlowSum:
    """Adds up the tables of one optimizer; skipped steps and those with non-finite gradients tell nothing of a spread.

    Example:
        >>> from gradmedic.frame import TensorTable
        >>> table = TensorTable(("a.weight", "b.weight"), {"norm": np.array([3.0, 4.0]), "numel": np.array([4, 4])})
        >>> summed = FlowSum()
        >>> summed.add(Frame(step=0, optimizer="SGD", grad_norm=5.0, tensors=table))
        >>> summed.flow(None).shares
        (('b', 0.64), ('a', 0.36))
    """

    _shares: dict[str, float] = field(default_factory=dict)
    _log_rms: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _names: tuple[str, ...] = ()
    _sums: Floats = field(default_factory=lambda: np.zeros((3, 0)))
    _tables: int = 0

    def add(self, frame: Frame) -> None:
        """Take the table of one frame, if it has one."""
        table = frame.tensors
        if frame.skipped or frame.nonfinite or not len(table):
            return
        norm = np.where(table.column("status") == SEEN, table.column("norm"), np.nan).astype(np.float64)
        largest = np.nanmax(norm, initial=0.0)
        if not (largest > 0 and math.isfinite(largest)):
            return
        if table.names != self._names:
            self._settle()
            self._names, self._sums = table.names, np.zeros((3, len(table.names)))
        squares = np.nan_to_num(norm / largest) ** 2
        rms = norm / np.sqrt(np.maximum(table.column("numel").astype(np.float64), 1.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(rms)
        known = np.isfinite(logs)
        self._sums += np.stack([squares / squares.sum(), np.where(known, logs, 0.0), known])
        self._tables += 1

    def flow(self, facts: Facts | None) -> Flow:
        """Return the spread; layers are in execution order where the facts tell it, else in that of their tensors."""
        self._settle()
        if not self._tables:
            return Flow()
        layers: dict[str, float] = {}
        for name, share in self._shares.items():
            layer = _layer(name, facts)
            layers[layer] = layers.get(layer, 0.0) + share / self._tables
        shares = tuple(sorted(layers.items(), key=lambda entry: -entry[1]))
        ratios = list(_ratios(self._weights(facts)))
        if not ratios:
            return Flow(shares)
        steepest = max(ratios, key=lambda entry: abs(math.log(entry[2])))
        return Flow(shares, median(entry[2] for entry in ratios), steepest)

    def _settle(self) -> None:
        for name, (share, logs, seen) in zip(self._names, self._sums.T.tolist(), strict=True):
            self._shares[name] = self._shares.get(name, 0.0) + share
            self._log_rms[name] = self._log_rms.get(name, 0.0) + logs
            self._seen[name] = self._seen.get(name, 0) + int(seen)
        self._sums[:] = 0.0

    def _weights(self, facts: Facts | None) -> list[_Weight]:
        """Return the weight matrices, first layer first."""
        found: list[tuple[float, _Weight]] = []
        for place, name in enumerate(self._shares):
            fact = facts.parameters.get(name) if facts is not None else None
            is_weight = len(fact.shape) >= 2 if fact is not None else name.endswith("weight")
            if is_weight and self._seen[name]:
                order = fact.order if fact is not None and fact.order is not None else place
                shape = fact.shape if fact is not None else ()
                found.append((order, _Weight(_layer(name, facts), self._log_rms[name] / self._seen[name], shape)))
        found.sort(key=lambda entry: entry[0])
        return [weight for _, weight in found]


def _ratios(weights: Sequence[_Weight]) -> Iterator[tuple[str, str, float]]:
    for here, after in pairwise(weights):
        if _may_feed(here.shape, after.shape):
            yield here.layer, after.layer, math.exp(max(-700.0, min(700.0, here.log_rms - after.log_rms)))


def _may_feed(shape: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a layer's outputs fit the next one's inputs, flattened ones included: two heads side by side do not."""
    if len(shape) < 2 or len(after) < 2:
        return True
    return shape[0] > 0 and after[1] % shape[0] == 0


def _layer(name: str, facts: Facts | None) -> str:
    fact = facts.parameters.get(name) if facts is not None else None
    if fact is not None and fact.module:
        return fact.module
    return name.rpartition(".")[0] or name
