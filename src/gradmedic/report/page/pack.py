"""Arrays as JSON can carry them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

#: JSON-ready: {"t": "f4", "f8" or "i4", "n": [dims], "b": base64 of little-endian, row-major numbers}.
Packed = dict[str, Any]

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_BOUND = np.iinfo(np.int32)


def pack_floats(values: npt.ArrayLike) -> Packed:
    """Pack numbers [...] as float32, or as float64 where one of them is too large for it.

    A finite value stays finite, and one that is not zero stays so (what is too small becomes the smallest number there
    is): the page reads an infinity as "not finite" and a zero as a zero. NaN and infinities stay.

    Example:
        >>> unpack(pack_floats([1e300])).tolist(), unpack(pack_floats([1e-300])).tolist() == [_SMALLEST]
        ([1e+300], True)
    """
    wide = np.asarray(values, dtype=np.float64)
    size = np.abs(wide)
    if ((size > _LARGEST) & (size < np.inf)).any():
        return _packed("f8", wide.astype("<f8"))
    with np.errstate(under="ignore", invalid="ignore"):
        narrow = wide.astype("<f4")
    gone = (size > 0) & (narrow == 0)
    narrow[gone] = np.copysign(_SMALLEST, wide[gone])
    return _packed("f4", narrow)


def pack_integers(values: npt.ArrayLike) -> Packed:
    """Pack whole numbers [...] as int32; those beyond it become its ends."""
    wide = np.asarray(values, dtype=np.int64)
    return _packed("i4", np.clip(wide, _BOUND.min, _BOUND.max).astype("<i4"))


def unpack(packed: Packed) -> npt.NDArray[Any]:
    """Return the array that was packed, float32 or int32."""
    data = base64.b64decode(packed["b"])
    values: npt.NDArray[Any] = np.frombuffer(data, dtype=f"<{packed['t']}").reshape(packed["n"])
    return values


def _packed(kind: str, values: npt.NDArray[Any]) -> Packed:
    data = base64.b64encode(np.ascontiguousarray(values).data).decode("ascii") if values.size else ""
    return {"t": kind, "n": list(values.shape), "b": data}
