"""Which optimizers, and which steps, of two runs correspond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradmedic.record.arrays import Array, booleans, codes_of, to_numpy
from gradmedic.report.views.source import Source, parts_of

_PART = 48


@dataclass(frozen=True, slots=True)
class CommonSteps:
    """The steps that an optimizer made in both runs.

    Attributes:
        a, b: the rows of those steps in the step tables, row k of one beside row k of the other.
        steps: their indices [N].
        whole_a, whole_b: all rows of the optimizer.
    """

    a: pa.Table
    b: pa.Table
    steps: Array
    whole_a: pa.Table
    whole_b: pa.Table


def paired(a: Sequence[str], b: Sequence[str]) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Return (corresponding names, those left over in A, those left over in B).

    Same names belong together, then what is left in the order in which it appeared: most scripts call their optimizer
    by another name before they call another optimizer so.

    Example:
        >>> paired(["opt", "G"], ["G", "optimizer", "D"])
        ([('G', 'G'), ('opt', 'optimizer')], [], ['D'])
    """
    same = [name for name in a if name in b]
    rest_a, rest_b = ([name for name in names if name not in same] for names in (a, b))
    more = list(zip(rest_a, rest_b, strict=False))
    pairs = [(name, name) for name in same] + more
    return pairs, rest_a[len(more) :], rest_b[len(more) :]


def common_steps(a: Source, b: Source, names: tuple[str, str]) -> CommonSteps:
    """Return the steps of an optimizer that two runs have in common, by restart and index."""
    whole = [_of_optimizer(source.steps, name) for source, name in zip((a, b), names, strict=True)]
    keys = [(parts_of(table) << _PART) + to_numpy(table["step"]) for table in whole]
    _, at_a, at_b = np.intersect1d(keys[0], keys[1], return_indices=True)
    rows = [table.take(pa.array(at)) for table, at in zip(whole, (at_a, at_b), strict=True)]
    return CommonSteps(rows[0], rows[1], to_numpy(rows[0]["step"]), whole[0], whole[1])


def _of_optimizer(steps: pa.Table, name: str) -> pa.Table:
    codes, names = codes_of(steps["optimizer"])
    return steps.filter(booleans(codes == names.index(name))) if name in names else steps.slice(0, 0)
