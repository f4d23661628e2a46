"""The user's own alarm: which norms may not be exceeded, checked once when they are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gradmedic.errors import InputError

#: One pre-clip norm for the whole model, or norms by pattern over tensor and module names.
Limits = float | Mapping[str, float] | None


def checked_limits(limits: Limits) -> Limits:
    """Return `limits` as floats.

    Raises:
        InputError: something else than a positive number, or a mapping from pattern to positive number.
    """
    if limits is None:
        return None
    if isinstance(limits, Mapping):
        return {str(pattern): _positive(value, f"limits[{pattern!r}]") for pattern, value in limits.items()}
    return _positive(limits, "limits")


def recorded_limits(meta: Mapping[str, Any]) -> Limits:
    """Return the limits that a run was recorded with; None where there are none, or where they are damaged."""
    try:
        return checked_limits(meta.get("limits"))
    except InputError:
        return None


def _positive(value: Any, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value <= 0:
        raise InputError(
            f"{label} must be a positive gradient norm such as 10.0, or a mapping such as "
            f'{{"encoder.*": 5.0}}, not {value!r}'
        )
    return float(value)
