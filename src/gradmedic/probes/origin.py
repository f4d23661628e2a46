"""The place at which values stopped being finite, as the record says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class Origin:
    """The place at which values stopped being finite; `to_event` gives the record's form.

    Attributes:
        kind: "data", "parameter", "forward", "loss", "backward" or "unknown".
        where: names: of parameters, of a module, or "input", "target", "loss".
        op: the operation, as torch calls its function.
        rows: places in the first dimension that are not finite, for data.
        shape, dtype, nan_count, inf_count: of the tensor in which it shows.
        detail: one sentence more.
        step: where it is known to have begun in an earlier step.
    """

    kind: str
    where: tuple[str, ...] = ()
    op: str | None = None
    rows: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nan_count: int = 0
    inf_count: int = 0
    detail: str = ""
    step: int | None = None

    def to_event(self) -> dict[str, Any]:
        """Return the event of kind "origin"."""
        return {
            "kind": "origin",
            "class": self.kind,
            "where": list(self.where),
            "op": self.op,
            "rows": list(self.rows),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
            "detail": self.detail,
        }

    @classmethod
    def of(cls, kind: str, tensor: torch.Tensor) -> Origin:
        """Describe a tensor that holds values which are not finite; counts them on the host."""
        values = tensor.detach()
        nans = int(torch.isnan(values).sum())
        return cls(
            kind,
            shape=tuple(values.shape),
            dtype=str(values.dtype).removeprefix("torch."),
            nan_count=nans,
            inf_count=int((~torch.isfinite(values)).sum()) - nans,
        )
