"""GM203 fp16-underflow: gradients are so small in half precision that most of their elements round to zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.layout import is_embedding
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View

#: Distance of fp16's subnormal numbers, and its smallest normal one: between the two only multiples of the first exist.
QUANTUM, SMALLEST_NORMAL = 2.0**-24, 2.0**-14


@dataclass(frozen=True)
class Thresholds:
    """When zeros are underflow."""

    share: float = 0.5
    """Share of zeros in a layer's gradient (rules.md)."""
    looks: int = 3
    """Looks, twenty tables apart, of which it must hold in each."""
    elements: int = 16
    """Smaller tensors have no share to speak of."""
    growth: float = 0.05
    """Growth of the share of zeros since the first look that says that it gets worse."""
    still: float = 0.1
    """Spread of a loss that stands still, as a part of it."""


@dataclass
class _State:
    names: tuple[str, ...] = ()
    runs: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: Floats = field(default_factory=lambda: np.zeros(0))
    since: int = 0


class Fp16Underflow:
    """Zeros beside a largest element that is itself at fp16's lower end.

    Zeros alone say nothing: dead ReLU units and unused rows of an embedding make them too, but leave the other elements
    at their usual size. Where weights are fp32 and the graph computes in fp16 (autocast), or most gradients are numbers
    of fp16 (a cast in a hook), a largest element that is an exact multiple of fp16's smallest step tells that the
    gradient came through fp16.
    """

    code = "GM203"
    name = "fp16-underflow"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 20
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every twentieth table."""
        table = view.frame.tensors
        if view.final and self._nothing_left(view):
            yield self._total_draft(view)
        if not view.table or view.history.tables % self.period or table.names != view.layout.names:
            return
        if self._nothing_left(view):
            yield self._total_draft(view)
            return
        zeros = table.column("zero_count") / np.maximum(table.column("numel"), 1)
        small = self._small(view, table.column("max_abs"))
        state = self._states.setdefault(view.frame.optimizer, _State())
        if state.names != table.names:
            state.names, state.first = table.names, zeros
            state.runs = np.zeros(len(zeros), dtype=np.int64)
        lost = small & (zeros > self.thresholds.share)
        state.runs = np.where(lost, state.runs + 1, 0)
        ripe = state.runs >= self.thresholds.looks
        if ripe.any():
            yield self._draft(view, state, np.flatnonzero(ripe), zeros)

    def _nothing_left(self, view: View) -> bool:
        """Whether every gradient has been exactly zero so far, of a loss that is not, in a graph of float16.

        The output's own bias has a gradient whatever dies below it: only underflow, or a factor of zero, takes that.
        """
        if view.facts is None or not view.facts.float16 or view.history.tables < self.period:
            return False
        counters = view.history.counters
        if not counters.seen.any() or counters.nonzero.any():
            return False
        return view.loss.last is not None and view.loss.last != 0 and np.isfinite(view.loss.last)

    def _total_draft(self, view: View) -> Draft:
        scale = view.frame.loss_scale
        return Draft(
            severity="error",
            confidence=0.9,
            step=0,
            where=view.layout.pick(np.flatnonzero(view.history.counters.seen > 0)),
            evidence=(
                Evidence("share of zeros in the gradient", 1.0, self.thresholds.share),
                Evidence("loss scale", scale),
                Evidence("loss, median of 20 steps", view.loss.recent, view.loss.first),
            ),
            params={
                "steps": view.history.tables,
                "loss": view.loss.last,
                "loss_step": view.frame.step,
                "scaled": "@with_scale" if scale else "@without_scale",
                "scale": scale or 1.0,
            },
            variant="total",
        )

    def _small(self, view: View, largest: Floats) -> npt.NDArray[np.bool_]:
        """Return which gradients are at fp16's lower end [P]: in fp16, as they were before a loss scale was removed."""
        half, chosen = self._kinds(view)
        scaled = largest * (view.frame.loss_scale or 1.0)
        steps = scaled / QUANTUM
        low = (scaled > 0) & (scaled < SMALLEST_NORMAL)
        nearest = np.maximum(np.round(steps), 1.0)
        whole = np.abs(steps - nearest) <= 1e-6 * nearest
        # In a graph of float32, cancellation leaves such multiples too: the rounding of numbers between 0.5 and 1.
        cast = view.facts is None or view.facts.float16 or not view.facts.steps_walked or _are_halves(scaled)
        found: npt.NDArray[np.bool_] = chosen & low & (half | (whole & cast))
        return found

    def _kinds(self, view: View) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which tensors are fp16, and which are looked at at all: no embeddings, nothing in bfloat16 [P]."""
        cache = view.layout.cache
        if self.code not in cache:
            dtypes = ["" if fact is None else fact.dtype for fact in view.layout.facts]
            embeddings = [is_embedding(n, f) for n, f in zip(view.layout.names, view.layout.facts, strict=True)]
            half = np.array([dtype == "float16" for dtype in dtypes], dtype=bool)
            other = np.array([dtype in ("bfloat16", "float64") for dtype in dtypes], dtype=bool)
            large = view.layout.numel >= self.thresholds.elements
            cache[self.code] = (half, large & ~other & ~np.array(embeddings, dtype=bool))
        found: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]] = cache[self.code]
        return found

    def _stands_still(self, view: View) -> bool:
        """Whether a loss that is small because it was scaled down stands still.

        The harm gate takes a loss below 1e-3 for that of a solved task; such a loss would vary from batch to batch.
        """
        losses = view.window("loss", 50)
        losses = losses[np.isfinite(losses)]
        if view.loss.falling is not False or not len(losses):
            return False
        middle = float(np.median(losses))
        return float(np.median(np.abs(losses - middle))) < self.thresholds.still * abs(middle)

    def _draft(self, view: View, state: _State, places: npt.NDArray[np.int64], zeros: Floats) -> Draft:
        limits = self.thresholds
        worst = float(zeros[places].max())
        growing = bool((zeros[places] - state.first[places] > limits.growth).any())
        harmed = view.harm.reason == "not_falling" or self._stands_still(view)
        scale = view.frame.loss_scale
        runs = int(state.runs[places].max())
        return Draft(
            severity="warning" if harmed else "info",
            confidence=0.85 if harmed and growing else (0.75 if harmed else 0.5),
            step=max(0, view.frame.step - self.period * runs + 1),
            where=view.layout.pick(places),
            evidence=(
                Evidence("share of zeros in the gradient", worst, limits.share),
                Evidence("share of zeros in the gradient, at first", float(state.first[places].max())),
                Evidence("loss scale", scale),
                Evidence("loss, median of 20 steps", view.loss.recent, view.loss.first),
            ),
            params={
                "n": len(places),
                "share": 100 * worst,
                "largest": float(view.frame.tensors.column("max_abs")[places].max()),
                "scaled": "@with_scale" if scale else "@without_scale",
                "scale": scale or 1.0,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant="" if harmed else "note",
        )


def _are_halves(values: Floats) -> bool:
    """Whether most of several numbers are numbers of float16: of those of float32, one in 8192 is by chance."""
    known = values[(values > 0) & (values < 65504.0)]
    return len(known) >= 2 and float((known == known.astype(np.float16)).mean()) > 0.5
