"""How far a step moves each weight matrix beside its own size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.layout import Layout
from gradmedic.diagnosis.optimizer_facts import rates_of
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View

#: Smaller matrices (a toy problem's 1 x 1 weight) may well move by their own size.
_ELEMENTS = 16
#: Weights of a smaller rms are zero-initialised by design (LoRA's B, residual gates): any step is large beside them.
_WEIGHT_FLOOR = 1e-3


def matrices(layout: Layout) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the places of the weight matrices [L], embeddings left out, and the norm below which each is as good as
    zero-initialised [L].
    """
    found: tuple[npt.NDArray[np.int64], Floats] | None = layout.cache.get("matrices")
    if found is None:
        places = np.flatnonzero(layout.matrix & (layout.numel >= _ELEMENTS))
        found = (places, _WEIGHT_FLOOR * np.sqrt(np.maximum(layout.numel[places], 1.0)))
        layout.cache["matrices"] = found
    return found


def update_ratios(view: View, n: int) -> Floats:
    """Return |update| / |weight| of the weight matrices over the last `n` tables [<=n, L].

    NaN where either is unknown, where the weight is as good as zero-initialised, and in a group whose rate is zero
    while others learn.
    """
    places, floor = matrices(view.layout)
    weight = view.tensor_window("weight_norm", n)[:, places]
    update = view.tensor_window("update_norm", n)[:, places]
    ratios = np.full(weight.shape, np.nan)
    np.divide(update, weight, out=ratios, where=weight > floor)
    if len(view.frame.lrs) > 1 and min(view.frame.lrs) == 0 < max(view.frame.lrs):
        ratios[:, rates_of(view)[places] == 0] = np.nan
    return ratios


def column_medians(values: Floats) -> Floats:
    """Return the median of each column [L] over the rows that are known, NaN where fewer than half of them are."""
    known = np.isfinite(values)
    enough = known.sum(axis=0) * 2 > len(values)
    medians = np.full(values.shape[1], np.nan)
    if enough.any():
        # NaN sorts last, so that the lower median of the known ones is at half of their count.
        ordered = np.sort(np.where(known, values, np.nan)[:, enough], axis=0)
        middle = (known.sum(axis=0)[enough] - 1) // 2
        medians[enough] = ordered[middle, np.arange(ordered.shape[1])]
    return medians


def median_of(values: Floats) -> float:
    """Return the median of the finite values, NaN when there is none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
