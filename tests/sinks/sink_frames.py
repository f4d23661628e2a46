"""Frames and findings that sinks are given in tests: known numbers, hostile names, values that are not finite."""

from __future__ import annotations

import math

import numpy as np

import gradmedic as gm
from gradmedic.diagnosis.finding import Finding, Remedy
from gradmedic.frame import TensorTable

HOSTILE = '<script>"it\'s"\n\x1b[31m层\x9b,' + "x" * 300
TENSORS = ("a.weight", "b.weight", HOSTILE)


def table(step, *, histogram=False):
    """Three tensors: a healthy one, one with a NaN, one without a gradient."""
    columns = {
        "norm": np.array([1.0 + step, 2.0, np.nan]),
        "max_abs": np.array([0.5, 1.0, np.nan]),
        "mean_abs": np.array([0.25, 0.5, np.nan]),
        "numel": np.array([8, 8, 8]),
        "zero_count": np.array([3, 0, 0]),
        "nan_count": np.array([0, 1, 0]),
        "inf_count": np.array([0, 0, 0]),
        "status": np.array([0, 0, 1]),
    }
    counts = np.zeros((3, 64), dtype=np.int64)
    counts[0, 45], counts[0, 46], counts[1, 47] = 2, 3, 7
    return TensorTable(TENSORS, columns, counts if histogram else None)


def frame(step, optimizer="adam", *, histogram=False, **values):
    """A step with every scalar known, unless told otherwise."""
    known = {
        "time": 1_700_000_000.0 + step,
        "loss": 1.0 / (1 + step),
        "lr": 0.1,
        "lrs": (0.1, 0.01),
        "grad_norm": 2.0 + step,
        "grad_norm_post": 1.0,
        "clip_scale": 0.5,
        "clip_threshold": 1.0,
        "clipped": True,
        "clip_frequency": 0.75,
        "loss_scale": 1024.0,
        "micro_batches": 2,
        "step_seconds": 0.25,
        "overhead_seconds": 0.125,
        "tensors": table(step, histogram=histogram),
    }
    return gm.Frame(step, optimizer, **{**known, **values})


def sick(step, optimizer="adam"):
    """A skipped step with a NaN norm and an unknown loss."""
    return frame(
        step,
        optimizer,
        loss=None,
        grad_norm=math.nan,
        grad_norm_post=math.inf,
        nonfinite=3,
        skipped=True,
        skip_reason="non-finite gradients (3 of 16)",
    )


def finding(code="GM201", severity="error", step=3, message="It is not a number. <b>&"):
    return Finding(
        code,
        "nonfinite",
        severity,
        1.0,
        step,
        optimizer="adam",
        where=(HOSTILE,),
        message=message,
        remedies=(Remedy("Do less."),),
        title="Not finite",
    )
