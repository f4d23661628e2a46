"""Runs to watch: small ones, with one odd thing each."""

from __future__ import annotations

import math
import time

import numpy as np

from gradmedic.frame import Frame, TensorTable
from gradmedic.record import Recorder

HOSTILE = "layers.<script>[red]\n\x1b[31m\u202e名字" + "y" * 300
NAMES = ("tok.weight", "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc.weight", HOSTILE)


def facts(names=NAMES, **changes):
    parameters = {
        name: {
            "name": name,
            "module": name.rpartition(".")[0],
            "kind": "Linear",
            "shape": [4],
            "numel": 4,
            "order": at,
            "optimizer": "adam",
            "reached": True,
            **changes.get(name, {}),
        }
        for at, name in enumerate(names)
    }
    return {"kind": "facts", "facts": {"parameters": parameters, "steps_walked": 1}}


def table(step, names=NAMES, **columns):
    size = len(names)
    values = {
        "numel": np.full(size, 4),
        "norm": 10.0 ** -np.arange(size) * (1 + step / 100),
        "zero_count": np.zeros(size, dtype=np.int64),
        "nan_count": np.zeros(size, dtype=np.int64),
        "inf_count": np.zeros(size, dtype=np.int64),
        "update_norm": np.full(size, 0.02),
        "weight_norm": np.full(size, 10.0 if step % 8 == 0 else math.nan),
        "status": np.zeros(size, dtype=np.int64),
    }
    return TensorTable(tuple(names), {**values, **columns})


def frame(step, names=NAMES, optimizer="adam", columns=None, **values):
    standard = {
        "loss": 4.0 / (1 + step),
        "grad_norm": 2.0 + step / 10,
        "lr": 1e-3,
        "step_seconds": 0.2,
        "overhead_seconds": 0.01,
        "time": time.time(),
    }
    return Frame(step, optimizer, tensors=table(step, names, **(columns or {})), **{**standard, **values})


def finding(code="GM201", where=("tok.weight",), step=3, severity="critical", name="nan"):
    return {
        "kind": "finding",
        "step": step,
        "finding": {
            "code": code,
            "name": name,
            "severity": severity,
            "confidence": 0.9,
            "step": step,
            "where": list(where),
            "message": "m",
            "title": "NaN",
            "params": {"step": step, "where": list(where), "optimizer": "adam"},
        },
    }


def recorder_of(folder, **meta):
    recorder = Recorder(folder, meta={"script": "train.py", **meta})
    recorder.event(facts())
    return recorder


def write_run(folder, steps=20, names=NAMES, **values):
    recorder = recorder_of(folder)
    for step in range(steps):
        recorder.put(frame(step, names, **values), keep=True)
    recorder.close()
    return folder
