"""Small run folders to export, with numbers of every kind."""

from __future__ import annotations

import math
import shutil

import numpy as np

from gradmedic.frame import INTEGER_COLUMNS, TENSOR_COLUMNS, Frame, TensorTable
from gradmedic.record import Recorder

HOSTILE = 'layers.0.<script>"a,b"\n\x1b[31m名'


def table(names, step, histogram=False):
    rng = np.random.default_rng(step)
    columns = {}
    for name in TENSOR_COLUMNS:
        size = len(names)
        columns[name] = rng.integers(0, 9, size) if name in INTEGER_COLUMNS else rng.standard_normal(size)
    columns["status"] = np.zeros(len(names), dtype=np.int64)
    columns["norm"][0] = [1.0, math.nan, math.inf, 5e-324, 0.1][step % 5]
    counts = rng.integers(0, 99, (len(names), 64)) if histogram else None
    return TensorTable(tuple(names), columns, counts)


def write_run(
    folder, steps=12, names=("a.weight", HOSTILE), optimizers=("adam",), budget="64MB", began=1000.0, copy=None
):
    recorder = Recorder(folder, meta={"script": "train.py"}, budget=budget, join=True)
    for step in range(steps):
        for optimizer in optimizers:
            recorder.put(
                Frame(
                    step,
                    optimizer,
                    time=began + step,
                    loss=[0.1 + 0.2, math.nan, math.inf, None, 1e300][step % 5],
                    lr=1e-3,
                    lrs=(1e-3, 1e-4) if step % 2 else (1e-3,),
                    grad_norm=1.5 * step,
                    skipped=step == 3,
                    skip_reason='because, "so"\nit was' if step == 3 else None,
                    step_seconds=None if step == 0 else 0.25,
                    logged={"accuracy": step / 7} if step % 3 else {"": 1.0},
                    tensors=table(names, step, histogram=step % 4 == 0),
                ),
                keep=True,
            )
            recorder.put_module_rows(
                [
                    {
                        "step": step,
                        "optimizer": optimizer,
                        "module": "a",
                        "what": "output",
                        "rms": 0.5,
                        "extra": {"k": 1.0},
                    }
                ]
            )
        if step % 4 == 3:
            recorder.flush(10)
    recorder.event({"kind": "finding", "step": 2, "time": 1002.0, "finding": finding("GM201", 2)})
    if copy is not None:  # as it is before the end
        recorder.flush(10)
        shutil.copytree(folder, copy)
    recorder.close()
    return folder


def finding(code, step):
    return {
        "code": code,
        "name": "nan",
        "severity": "critical",
        "step": step,
        "title": "NaN <b>",
        "message": "It is not a number.",
        "remedies": [{"text": "Look at the data.", "action": None}],
    }
