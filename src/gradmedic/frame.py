"""What was measured at one optimizer step, on the host.

A `Frame` holds plain Python numbers and numpy arrays only: it keeps no tensor, graph or model alive. Three absences
are kept apart everywhere: `None` means *not known* (no loss was seen, there is no loss scale), NaN means *measured and
not a number*, and a tensor's `status` says whether a gradient was there at all.
"""

from __future__ import annotations

import time as _time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.types import COUNT_COLUMNS, LOCAL_COLUMNS, MOMENT_COLUMNS, SAMPLED_COLUMNS

Array = npt.NDArray[Any]

#: Status of a tensor at a step. SEEN: a gradient was there and was measured. NONE: the optimizer owns the tensor and it
#: had no gradient (`.grad is None`). NOT_VISIBLE: the gradient cannot be seen from here (meta device, an engine that
#: keeps gradients to itself). Zero and non-finite gradients are SEEN; the counts tell them.
SEEN, NONE, NOT_VISIBLE = 0, 1, 2
STATUS_NAMES: tuple[str, ...] = ("seen", "none", "not_visible")

#: Columns of a frame's tensor table, beside the name. `clip_scale` is the factor that clipping applied to the tensor.
TENSOR_COLUMNS: tuple[str, ...] = (
    *COUNT_COLUMNS,
    *MOMENT_COLUMNS,
    *SAMPLED_COLUMNS,
    "clip_scale",
    "status",
    *LOCAL_COLUMNS,
)
INTEGER_COLUMNS: frozenset[str] = frozenset({*COUNT_COLUMNS, "status", "local_nonfinite"})


class Row(Mapping[str, Any]):
    """One tensor's statistics; values by attribute (`row.norm`) or by key (`row["norm"]`)."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __getattr__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(f"no statistic {key!r}; there are: {', '.join(self._values)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "Row(" + ", ".join(f"{key}={value!r}" for key, value in self._values.items()) + ")"


class TensorTable(Mapping[str, Row]):
    """Per-tensor statistics of one step: a mapping from tensor name to `Row`, stored by column.

    `names` (N) and `columns` (name -> array of N) are the storage; `log2_hist` is an array [N, 64] or None.
    Columns that were not measured are absent from `columns` and NaN in rows.
    """

    __slots__ = ("_index", "columns", "log2_hist", "names")

    def __init__(
        self,
        names: tuple[str, ...] = (),
        columns: Mapping[str, Array] | None = None,
        log2_hist: Array | None = None,
    ) -> None:
        self.names = tuple(names)
        self.columns: dict[str, Array] = dict(columns or {})
        self.log2_hist = log2_hist
        self._index: dict[str, int] | None = None

    def column(self, name: str) -> Array:
        """Return one column [N]; float64 NaN (or 0 for `status`) where it was not measured."""
        found = self.columns.get(name)
        if found is not None:
            return found
        if name not in TENSOR_COLUMNS:
            raise KeyError(f"no statistic {name!r}; there are: {', '.join(TENSOR_COLUMNS)}")
        if name == "status":
            return np.zeros(len(self.names), dtype=np.int64)
        return np.full(len(self.names), np.nan)

    def __getitem__(self, name: str) -> Row:
        if self._index is None:
            self._index = {key: position for position, key in enumerate(self.names)}
        at = self._index[name]
        values: dict[str, Any] = {}
        for key in TENSOR_COLUMNS:
            value = self.column(key)[at]
            is_count = key in INTEGER_COLUMNS and not np.isnan(value)
            values[key] = int(value) if is_count else float(value)
        values["status"] = STATUS_NAMES[values["status"]]
        if self.log2_hist is not None:
            values["log2_hist"] = self.log2_hist[at]
        return Row(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True)
class Frame:
    """All that was measured at one step of one optimizer.

    Attributes:
        step: index of the step, counted per optimizer from 0, skipped steps included.
        optimizer: name of the optimizer that made the step.
        time: unix seconds at the end of the step.
        loss: sum of the backward roots since the last step of any optimizer, in true units; None if none was seen.
        lr: learning rate of the first parameter group; `lrs` those of all groups. None if the optimizer has none.
        grad_norm: L2 norm of all gradients before clipping: unscaled, accumulated, reduced. NaN or inf when any
            element is. None when no gradient was visible (never a silent 0).
        grad_norm_post: the same after clipping, as the optimizer used it.
        clip_scale: joint factor grad_norm_post / grad_norm of all clipping; 1.0 without any.
        clip_threshold: the threshold in force, None where there was no clipping by norm.
        clipped: whether the norm exceeded the threshold (or a value was clamped).
        transform_scale, transform_threshold: the joint factor of the transform given to gradmedic, and the threshold it
            had for the whole, beside whatever the script clips by itself; None without a transform.
        clip_frequency: running share of this optimizer's steps that were clipped, in [0, 1].
        skipped, skip_reason: whether the weights were left alone, and why.
        loss_scale: GradScaler's scale in force at backward time; None without a scaler.
        nonfinite: number of NaN and infinite gradient elements.
        micro_batches: outermost backward calls since the last step (closure evaluations for LBFGS).
        stale_grads: gradients of the step before were still there when this step's backward began.
        step_seconds: wall time since this optimizer's last step ended; None on its first.
        overhead_seconds: what gradmedic itself spent on this step.
        logged: what the user passed to `monitor.log`.
        tensors: per-tensor table; empty on steps for which only scalars are kept.
        modules: what was measured of modules, on sampled steps: one mapping for each output and output gradient, with
            the columns of the record's module table.
    """

    step: int
    optimizer: str
    time: float = field(default_factory=_time.time)
    loss: float | None = None
    lr: float | None = None
    lrs: tuple[float, ...] = ()
    grad_norm: float | None = None
    grad_norm_post: float | None = None
    clip_scale: float = 1.0
    clip_threshold: float | None = None
    clipped: bool = False
    transform_scale: float | None = None
    transform_threshold: float | None = None
    clip_frequency: float = 0.0
    skipped: bool = False
    skip_reason: str | None = None
    loss_scale: float | None = None
    nonfinite: int = 0
    micro_batches: int = 0
    stale_grads: bool = False
    step_seconds: float | None = None
    overhead_seconds: float = 0.0
    logged: Mapping[str, float] = field(default_factory=dict)
    tensors: TensorTable = field(default_factory=TensorTable)
    modules: tuple[Mapping[str, Any], ...] = ()

    def _repr_html_(self) -> str:
        from gradmedic.report.notebook import frame_html

        return frame_html(self)
