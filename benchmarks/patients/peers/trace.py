"""What peers can read of a record: arrays over the steps, per tensor and per sampled module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.facts import Facts
from gradmedic.record import Run

Array = npt.NDArray[Any]

_COLUMNS = ("norm", "mean_abs", "std", "zero_count", "numel", "nan_count", "inf_count", "update_norm", "weight_norm")


@dataclass
class Trace:
    """One run.

    Attributes:
        steps, loss, lr: arrays [S], one entry for each optimizer step, in the order of time; NaN where unknown.
        lost: bool [S], where the loss was measured and is not a finite number.
        table_steps: steps [T] with a table of all tensors.
        names: of the tensors [P], in execution order where that is known.
        tensors: column -> array [T, P], NaN where not measured; weight norms are carried forward.
        rows: of sampled modules, in the order of time; what was in `extra` is beside the columns.
        facts: the last that were recorded.
        kinds: class names of the modules.
    """

    steps: Array
    loss: Array
    lr: Array
    table_steps: Array
    names: list[str]
    tensors: dict[str, Array]
    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    kinds: dict[str, str] = field(default_factory=dict)
    lost: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __post_init__(self) -> None:
        if len(self.lost) != len(self.loss):
            self.lost = np.isinf(self.loss)

    @classmethod
    def of(cls, run: Run) -> Trace:
        """Read a run folder; of several ranks the lowest."""
        facts = Facts()
        for event in run.events:
            if event.get("kind") == "facts":
                facts = Facts.from_json(event["facts"])
        tensors: dict[str, Array] = {}
        for column in _COLUMNS:
            steps, names, tensors[column] = run.matrix(column)
        order = sorted(range(len(names)), key=lambda at: _place(facts, names[at], at))
        tensors = {column: values[:, order] for column, values in tensors.items()}
        tensors["weight_norm"] = carried_forward(tensors["weight_norm"])
        loss = run.series("loss").astype(np.float64)
        measured = np.asarray(run.steps["loss"].is_valid())
        return cls(
            steps=run.series("step").astype(np.int64),
            loss=loss,
            lr=run.series("lr").astype(np.float64),
            table_steps=steps,
            names=[names[at] for at in order],
            tensors=tensors,
            rows=[{**row, **dict(row.get("extra") or ())} for row in run.modules.to_pylist()],
            facts=facts,
            kinds={each["name"]: each["class"] for each in run.meta.get("models", ())},
            lost=~np.isfinite(loss) & measured if len(measured) == len(loss) else np.isinf(loss),
        )

    def kernels(self) -> list[int]:
        """Return the places of weights with at least two dimensions, biases and gains left out."""
        found = []
        for place, name in enumerate(self.names):
            fact = self.facts.parameters.get(name)
            if fact is not None and len(fact.shape) >= 2 and "Embedding" not in fact.kind:
                found.append(place)
        return found

    def rows_of(self, what: str) -> Iterator[dict[str, Any]]:
        """Yield the module rows of one kind."""
        return (row for row in self.rows if row["what"] == what)

    def skill(self) -> tuple[Array, Array]:
        """Return how much better than a constant prediction the model is: (steps, 1 - loss / baseline).

        Peers that work on accuracies get this for one: 0 for a constant, 1 for a perfect prediction. The losses are
        those of all steps where they are what the sampled loss calls measured (no further terms, no other scale), else
        those of the sampled calls. Where no loss call was seen it is 1 - loss / first loss.
        """
        rows = [row for row in self.rows_of("loss") if number(row, "baseline") > 0 and row.get("loss") is not None]
        if len(rows) < 2:
            first = next((value for value in self.loss if math.isfinite(value) and value != 0), math.nan)
            return self.steps, 1 - self.loss / first
        sampled = np.array([[row["step"], row["loss"], row["baseline"]] for row in rows], dtype=np.float64)
        whole = dict(zip(self.steps.tolist(), self.loss.tolist(), strict=True))
        same = [math.isclose(whole.get(int(step), math.nan), loss, rel_tol=0.05) for step, loss, _ in sampled]
        if len(whole) == len(self.steps) and np.mean(same) > 0.9:
            return self.steps, 1 - self.loss / float(np.median(sampled[:, 2]))
        return sampled[:, 0].astype(np.int64), 1 - sampled[:, 1] / sampled[:, 2]


def number(row: dict[str, Any], key: str) -> float:
    """Return a number of a module row, NaN where there is none."""
    value = row.get(key)
    return math.nan if value is None else float(value)


def carried_forward(values: Array) -> Array:
    """Return an array [T, P] in which NaN is replaced by the last number before it."""
    filled: Array = values.copy()
    for at in range(1, len(filled)):
        unknown = np.isnan(filled[at])
        filled[at, unknown] = filled[at - 1, unknown]
    return filled


def first_run_of(flags: Array, length: int) -> int | None:
    """Return the index at which a flag [T] has been set `length` times in a row, None where it never has."""
    count = 0
    for at, flag in enumerate(flags):
        count = count + 1 if flag else 0
        if count >= length:
            return at
    return None


def _place(facts: Facts, name: str, at: int) -> tuple[int, int]:
    fact = facts.parameters.get(name)
    return (fact.order, at) if fact is not None and fact.order is not None else (10**9, at)
