"""Layers: the modules that own tensors, and the gradient norm of each as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Floats


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A module that owns tensors.

    Attributes:
        name, kind: qualified name and class; the name of the tensor itself where no module is known.
        tensors: its own tensors, as indices into the tensor rows.
    """

    name: str
    kind: str
    tensors: tuple[int, ...]


def layer_rows(rows: Sequence[TensorRow]) -> list[LayerRow]:
    """Return the layers of tensor rows, in the order of their first tensors.

    Example:
        >>> layer_rows([TensorRow("fc.weight", "fc", "Linear"), TensorRow("fc.bias", "fc", "Linear")])
        [LayerRow(name='fc', kind='Linear', tensors=(0, 1))]
    """
    held: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for at, row in enumerate(rows):
        # A tensor of the outermost module has no module name of its own to be shown by.
        name = row.module or row.name
        held.setdefault(name, []).append(at)
        kinds.setdefault(name, row.kind)
    return [LayerRow(name, kinds[name], tuple(places)) for name, places in held.items()]


def joint_norms(values: npt.ArrayLike, layers: Sequence[LayerRow | Sequence[int]]) -> Floats:
    """Return the norm of each layer: the root of the sum of squares over its tensors, which never overflows.

    Args:
        values: norms [S, P] of tensors, NaN where not recorded.
        layers: layer rows, or the columns of each.

    Returns:
        [S, L] float64: NaN where none of a layer's tensors was recorded, infinite where any is.

    Example:
        >>> joint_norms([[3.0, 4.0, np.nan]], [(0, 1), (2,)]).tolist()
        [[5.0, nan]]
    """
    norms = np.asarray(values, dtype=np.float64)
    columns = [tuple(layer.tensors if isinstance(layer, LayerRow) else layer) for layer in layers]
    made = np.full((norms.shape[0], len(columns)), np.nan)
    for rank in range(max(map(len, columns), default=0)):
        here = [at for at, each in enumerate(columns) if len(each) > rank]
        more, so_far = norms[:, [columns[at][rank] for at in here]], made[:, here]
        with np.errstate(over="ignore"):
            joint = np.hypot(np.nan_to_num(so_far, posinf=np.inf), np.nan_to_num(more, posinf=np.inf, neginf=np.inf))
        made[:, here] = np.where(np.isnan(so_far) & np.isnan(more), np.nan, joint)
    return made
