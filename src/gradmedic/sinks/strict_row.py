"""A frame's scalars as one flat row, for files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmedic.frame import Frame

#: Columns of a step, in the order in which files have them; the record's names.
COLUMNS: tuple[str, ...] = (
    "step",
    "optimizer",
    "time",
    "loss",
    "lr",
    "grad_norm",
    "grad_norm_post",
    "clip_scale",
    "clip_threshold",
    "clipped",
    "clip_frequency",
    "transform_scale",
    "transform_threshold",
    "skipped",
    "skip_reason",
    "loss_scale",
    "nonfinite",
    "micro_batches",
    "stale_grads",
    "step_seconds",
    "overhead_seconds",
)


def scalars_of(frame: Frame) -> dict[str, Any]:
    """Return column -> value; None where it is not known."""
    return {column: getattr(frame, column) for column in COLUMNS}
