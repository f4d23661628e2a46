"""Frames to record, and how to compare them."""

from __future__ import annotations

import math

import numpy as np

from gradmedic.frame import INTEGER_COLUMNS, TENSOR_COLUMNS, Frame, TensorTable


def table(count, seed=0, histogram=False):
    rng = np.random.default_rng(seed)
    columns = {}
    for name in TENSOR_COLUMNS:
        columns[name] = rng.integers(0, 9, count) if name in INTEGER_COLUMNS else rng.standard_normal(count)
    columns["status"] = rng.integers(0, 3, count)
    names = tuple(f"layers.{at}.weight" for at in range(count))
    return TensorTable(names, columns, rng.integers(0, 99, (count, 64)) if histogram else None)


def frame(step, tensors=0, optimizer="adam", **values):
    return Frame(
        step=step, optimizer=optimizer, tensors=table(tensors, seed=step), **{"loss": 1.0 / (step + 1), **values}
    )


def empty_frame(step=0):
    """A frame of which nothing is known."""
    names = [
        name for name in Frame.__dataclass_fields__ if name not in ("step", "optimizer", "time", "tensors", "modules")
    ]
    return Frame(step=step, optimizer="adam", time=0.0, **dict.fromkeys(names))


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def assert_same_table(got, expected):
    assert got.names == expected.names
    if not expected.names:
        return
    assert got.columns.keys() == expected.columns.keys()
    for name in TENSOR_COLUMNS:
        np.testing.assert_array_equal(got.column(name), expected.column(name), err_msg=name)
    assert (got.log2_hist is None) == (expected.log2_hist is None)
    if expected.log2_hist is not None:
        np.testing.assert_array_equal(got.log2_hist, expected.log2_hist)


def assert_same_frame(got, expected, tensors=True):
    for name in Frame.__dataclass_fields__:
        if name != "tensors":
            assert same(getattr(got, name), getattr(expected, name)), (name, got, expected)
    if tensors:
        assert_same_table(got.tensors, expected.tensors)
