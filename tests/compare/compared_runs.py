"""Pairs of small runs with one known difference."""

from __future__ import annotations

import numpy as np

from gradmedic.frame import Frame, TensorTable
from gradmedic.record import Recorder

NAMES = ("a.weight", "b.weight", "c.weight")


def facts(names=NAMES, optimizer="adam", **defaults):
    parameters = {
        name: {"name": name, "module": name.split(".")[0], "kind": "Linear", "shape": [2], "numel": 2, "order": at}
        for at, name in enumerate(names)
    }
    held = {optimizer: {"class": "Adam", "defaults": {"lr": 0.1, **defaults}}}
    return {"kind": "facts", "time": 0.0, "facts": {"parameters": parameters, "optimizers": held}}


def norms_at(step, names):
    return np.array([1.0 + at + np.sin(step + at) / 4 for at in range(len(names))])


def write_run(
    folder, steps=60, *, optimizer="adam", names=NAMES, change=None, scale=None, meta=None, every=1, seconds=0.1, lr=0.1
):
    """Record a smooth run; `change(step, values)` changes scalars, `scale` multiplies norms of tensors by name.

    Beside scalars there are `histogram` and `module`, which change one number of theirs, and `lost`: how many are NaN.
    """
    recorder = Recorder(folder, meta={"command": ["python", "train.py"], **(meta or {})})
    recorder.event(facts(names, optimizer, lr=lr))
    for step in range(steps):
        norm = norms_at(step, names) * [(scale or {}).get(name, 1.0) for name in names]
        values = {"loss": 2.0 / (1 + step), "grad_norm": float(np.sqrt((norm**2).sum())), "lr": lr}
        if change is not None:
            change(step, values)
        histogram = np.full((len(names), 64), step) if step % 11 == 0 else None
        if values.pop("histogram", 0):
            histogram[1, 5] += 1
        rms = 1.0 + values.pop("module", 0)
        lost = np.full(len(names), values.pop("lost", 0))
        columns = {
            "numel": np.full(len(names), 2),
            "norm": np.where(lost, 0.0, norm),
            "zero_count": np.zeros(len(names), dtype=np.int64),
            "nan_count": lost,
            "inf_count": np.zeros(len(names), dtype=np.int64),
            "status": np.zeros(len(names), dtype=np.int64),
        }
        frame = Frame(
            step,
            optimizer,
            time=1000.0 + step * seconds,
            step_seconds=seconds,
            overhead_seconds=seconds / 50,
            tensors=TensorTable(names, columns, histogram),
            **values,
        )
        recorder.put(frame, keep=step % every == 0)
        recorder.put_module_rows([{"step": step, "optimizer": optimizer, "module": "a", "what": "output", "rms": rms}])
    recorder.close()
    return folder
