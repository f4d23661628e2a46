"""Names and small protocols that every layer shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from gradmedic.frame import Frame

Severity = Literal["info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error", "critical")

Backend = Literal["auto", "torch", "native", "reference"]

#: An event is a JSON-ready mapping with at least "kind" (str) and "time" (unix seconds); most carry "step" and
#: "optimizer". See docs/record.md for every kind.
Event = Mapping[str, Any]

#: Statistics of one gradient (DESIGN section 4), in the order in which they are stored.
MOMENT_COLUMNS: tuple[str, ...] = ("norm", "max_abs", "min_abs", "mean", "std", "mean_abs")
COUNT_COLUMNS: tuple[str, ...] = ("numel", "zero_count", "nan_count", "inf_count")
#: Statistics from sampled coordinates, and the exact weight norm; NaN where not measured.
SAMPLED_COLUMNS: tuple[str, ...] = ("update_norm", "unchanged_frac", "cosine_prev", "weight_norm")
#: Of this rank's own gradient, before the reduction over ranks: of its finite elements, and how many are not.
LOCAL_COLUMNS: tuple[str, ...] = ("local_norm", "local_nonfinite")
HISTOGRAM_BINS = 64
#: Exponent of the lower edge of bin 0: bin k counts 2^(k-48) <= |g| < 2^(k-47).
HISTOGRAM_FIRST_EXPONENT = -48


class Sink(Protocol):
    """Where live numbers also go. `emit` gets every frame, `emit_finding` every finding; `close` ends it."""

    def emit(self, frame: Frame) -> None: ...

    def emit_finding(self, finding: Any) -> None: ...

    def close(self) -> None: ...
