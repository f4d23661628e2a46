"""Sizes of run folders, as people write them."""

from __future__ import annotations

import re

from gradmedic.errors import InputError

#: Less than this cannot hold a schema, a few steps and the events.
MINIMUM_BUDGET = 256 * 1024

_UNITS = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", re.IGNORECASE)


def parse_budget(budget: str | int | float) -> int:
    """Return a size in bytes.

    Args:
        budget: a number of bytes, or a number with a unit: ``"256MB"``, ``"1.5 GB"``, ``"300k"``. Units are powers of
            1024; ``MiB`` and ``MB`` are the same. At least 256 KB.

    Returns:
        The number of bytes, an int.

    Raises:
        InputError: the text is no size, or the size is below 256 KB.

    Example:
        >>> parse_budget("1MB")
        1048576
    """
    size = _bytes_of(budget)
    if size is None:
        raise InputError(f'budget must be a number of bytes or a text such as "256MB" or "1GB"; got {budget!r}')
    if size < MINIMUM_BUDGET:
        raise InputError(f'budget must be at least 256KB to hold a record; got {budget!r}. The default is "256MB"')
    return size


def _bytes_of(budget: object) -> int | None:
    if isinstance(budget, str):
        match = _SIZE.fullmatch(budget)
        if match is None:
            return None
        unit = match[2].upper().replace("I", "")
        unit = unit if unit.endswith("B") or not unit else unit + "B"
        return int(float(match[1]) * _UNITS[unit])
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        return None
    if isinstance(budget, float) and not budget.is_integer():  # also NaN and infinity
        return None
    return int(budget)
