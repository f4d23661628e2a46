"""The types of elements that the Triton kernels know, by torch's names and by Triton's."""

from __future__ import annotations

import importlib
from typing import Any

import torch

_ELEMENTS = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float8_e4m3fn: "float8e4nv",
    torch.float8_e5m2: "float8e5",
}


def known(dtype: torch.dtype) -> bool:
    """Whether kernels can read elements of a type."""
    return dtype in _ELEMENTS


def element(dtype: torch.dtype) -> Any:
    """Return Triton's type for a known one of torch."""
    return getattr(importlib.import_module("triton.language"), _ELEMENTS[dtype])
