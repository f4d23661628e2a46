"""GM305 symmetric-init: units of a hidden layer begin as copies of each other, and stay so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """How alike rows are that count as identical."""

    spread: float = 1e-6
    """rms distance from the first row over the largest weight: rules.md asks for 0; sums of a batch in another order
    make copies differ in the last bits after a step."""
    later_spread: float = 1e-4
    """The same after the first updates."""
    zero_samples: int = 2
    """Samples after which weights of zero that get no gradient are given up."""


_Weight = tuple[str, str]


@dataclass(slots=True)
class _Seen:
    """Successive weights that were symmetric in the first sample, and the rms of all weights then."""

    step: int
    rms: dict[_Weight, float]
    pairs: list[tuple[_Weight, _Weight]]
    done: bool = False
    samples: int = 1


class SymmetricInit:
    """Rows of weights at the start, and whether updates tell them apart.

    Rows of a layer that are the same make its units the same; what the units send on is told apart only by the columns
    of the next layer. Where these are the same as well, all units get one gradient, for ever. Two successive layers
    that each repeat one number are said at once: biases tell such units apart, but hardly. Other equal rows, and
    zeros, are said when the first updates have left them equal: a single layer of zeros (the last of a residual
    branch, a head, LoRA's B) stands beside a random one, and gets out of its symmetry.
    """

    code = "GM305"
    name = "symmetric-init"
    kind: Kind = "invariant"
    needs = frozenset({"norm"})
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._seen: dict[str, _Seen] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Compare the first sampled steps."""
        rows = [] if view.final else _rows(view)
        if not rows:
            return
        seen = self._seen.get(view.frame.optimizer)
        if seen is None:
            pairs = self._symmetric(rows, self.thresholds.spread)
            rms = {_weight(row): row.get("rms") for row in rows}
            seen = self._seen[view.frame.optimizer] = _Seen(view.frame.step, rms, pairs, done=not pairs)
            constant = self._constant(rows, pairs)
            if constant:
                seen.done = True
                yield self._draft(rows, seen, constant, "constant")
        elif not seen.done:
            yield from self._compare(view, rows, seen)

    def _compare(self, view: View, rows: Sequence[SampledRow], seen: _Seen) -> Iterator[Draft]:
        seen.samples += 1
        now = set(self._symmetric(rows, self.thresholds.later_spread))
        still = list(dict.fromkeys(pair[0] for pair in seen.pairs if pair in now))
        moved = any(_weight(row) in still and row.get("rms") != seen.rms[_weight(row)] for row in rows)
        zero = not any(seen.rms[weight] for weight in still)
        if not still:
            seen.done = True
        elif moved:
            seen.done = True
            yield self._draft(rows, seen, still, "")
        elif seen.samples >= self.thresholds.zero_samples and zero and _without_gradient(view, still):
            seen.done = True
            yield self._draft(rows, seen, still, "zero")

    def _symmetric(self, rows: Sequence[SampledRow], limit: float) -> list[tuple[_Weight, _Weight]]:
        """Return pairs of successive weights of which the first has equal rows and the second equal columns."""
        found: list[tuple[_Weight, _Weight]] = []
        for layer, following in pairwise(rows):
            outputs = layer.get("outputs")
            fits = outputs >= 2 and following.get("inputs") % outputs == 0
            if fits and layer.get("row_spread") <= limit and following.get("column_spread") <= limit:
                found.append((_weight(layer), _weight(following)))
        return found

    def _constant(self, rows: Sequence[SampledRow], pairs: Sequence[tuple[_Weight, _Weight]]) -> list[_Weight]:
        """Return the first weights of those pairs in which both repeat one number that is not zero."""
        limit = self.thresholds.spread
        flat = {
            _weight(row)
            for row in rows
            if row.get("rms") > 0 and row.get("row_spread") <= limit and row.get("column_spread") <= limit
        }
        # Of the second, whose rows may differ (one for each class), only the columns count.
        return list(dict.fromkeys(first for first, second in pairs if {first, second} <= flat))

    def _draft(self, rows: Sequence[SampledRow], seen: _Seen, found: Sequence[_Weight], variant: str) -> Draft:
        chosen = [row for row in rows if _weight(row) in found]
        names = tuple(dict.fromkeys(module for module, _ in found))
        return Draft(
            severity="error",
            confidence=0.97,
            step=seen.step,
            where=names,
            evidence=(
                Evidence(
                    "distance of the rows of a weight from the first",
                    max(row.get("row_spread") for row in chosen),
                    self.thresholds.later_spread,
                ),
                Evidence("layers with equal rows", len(names)),
            ),
            params={
                "layers": len(names),
                "units": max(int(row.get("outputs")) for row in chosen),
                "layer": names[0],
                "value": seen.rms[found[0]],
            },
            variant=variant,
        )


def _weight(row: SampledRow) -> _Weight:
    return row.module, row.leaf


def _rows(view: View) -> list[SampledRow]:
    rows = [SampledRow(view.frame.step, row) for row in view.frame.modules if row.get("what") == "weights"]
    return sorted(rows, key=lambda row: row.get("order"))


def _without_gradient(view: View, weights: Sequence[_Weight]) -> bool:
    """Whether these parameters have a gradient, and all of exactly zero."""
    table = view.frame.tensors
    wanted = {name for module, leaf in weights for name in (f"{module}.{leaf}", module, leaf)}
    norms = [norm for name, norm in zip(table.names, table.column("norm"), strict=True) if name in wanted]
    return bool(norms) and all(norm == 0 for norm in norms)
