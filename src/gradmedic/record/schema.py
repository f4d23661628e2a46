"""The columns of a record. See docs/record.md for what each column means."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gradmedic.frame import INTEGER_COLUMNS, TENSOR_COLUMNS
from gradmedic.record.arrays import TEXT
from gradmedic.types import COUNT_COLUMNS, MOMENT_COLUMNS

#: Of the layout on file; it grows when a reader of an older version could misread a file.
FORMAT_VERSION = 1

REALS = pa.list_(pa.float64())
LOGGED = pa.map_(pa.utf8(), pa.float64())
HISTOGRAM = pa.list_(pa.int64())

_STEP_TYPES: dict[str, Any] = {
    "step": pa.int64(),
    "optimizer": TEXT,
    "time": pa.float64(),
    "loss": pa.float64(),
    "lr": pa.float64(),
    "lrs": REALS,
    "grad_norm": pa.float64(),
    "grad_norm_post": pa.float64(),
    "clip_scale": pa.float64(),
    "clip_threshold": pa.float64(),
    "clipped": pa.bool_(),
    "transform_scale": pa.float64(),
    "transform_threshold": pa.float64(),
    "clip_frequency": pa.float64(),
    "skipped": pa.bool_(),
    "skip_reason": pa.utf8(),
    "loss_scale": pa.float64(),
    "nonfinite": pa.int64(),
    "micro_batches": pa.int64(),
    "stale_grads": pa.bool_(),
    "step_seconds": pa.float64(),
    "overhead_seconds": pa.float64(),
    "logged": LOGGED,
    "ordinal": pa.int64(),
}


def _tensor_type(column: str) -> Any:
    if column == "status":
        return pa.int8()
    return pa.int64() if column in INTEGER_COLUMNS else pa.float64()


STEPS = pa.schema(list(_STEP_TYPES.items()))
TENSORS = pa.schema(
    [
        ("step", pa.int64()),
        ("optimizer", TEXT),
        ("name", TEXT),
        *((column, _tensor_type(column)) for column in TENSOR_COLUMNS),
        ("log2_hist", HISTOGRAM),
        ("ordinal", pa.int64()),
    ]
)
#: `what` is "output" or "grad_output"; `call` counts a module's calls within the step; `leaf` tells the tensors of one
#: output apart.
MODULES = pa.schema(
    [
        ("step", pa.int64()),
        ("optimizer", TEXT),
        ("module", TEXT),
        ("what", TEXT),
        ("call", pa.int64()),
        ("leaf", TEXT),
        *((column, _tensor_type(column)) for column in (*COUNT_COLUMNS, *MOMENT_COLUMNS)),
        ("rms", pa.float64()),
        ("saturated_frac", pa.float64()),
        ("units", pa.float64()),
        ("inactive_units", pa.float64()),
        ("batches", pa.float64()),
        ("extra", LOGGED),
        ("ordinal", pa.int64()),
    ]
)
SCHEMAS: dict[str, pa.Schema] = {"steps": STEPS, "tensors": TENSORS, "modules": MODULES}

#: Bytes of one row before compression, to plan with.
ROW_BYTES = {"steps": 200, "tensors": 140, "modules": 120}
