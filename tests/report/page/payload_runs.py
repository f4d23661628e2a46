"""Runs for the page's data, and how to read what was packed."""

import base64
import json

import numpy as np

from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import TENSOR_COLUMNS, Frame, TensorTable
from gradmedic.record import MemoryRecorder
from gradmedic.types import COUNT_COLUMNS

HOSTILE = [
    "<script>alert(1)</script>",
    '"quoted"\'',
    "名" * 100 + "x" * 200,
    "two\nlines",
    "\x1b[31mred",
    "\u2028&amp;",
]


def table(names, histogram=None, **columns):
    size = len(names)
    made = {name: np.zeros(size, np.int64 if name in COUNT_COLUMNS else np.float64) for name in TENSOR_COLUMNS}
    made |= {"status": np.zeros(size, np.int64), "numel": np.full(size, 4, np.int64)}
    for name, values in columns.items():
        made[name] = np.broadcast_to(np.asarray(values), (size,))
    return TensorTable(tuple(names), made, histogram)


def frame(step, names=(), optimizer="adam", *, histogram=None, time=None, scalars=None, **columns):
    tensors = table(names, histogram, **columns) if len(names) else TensorTable()
    return Frame(step, optimizer, time=float(step) if time is None else time, tensors=tensors, **(scalars or {}))


def fact(name, **values):
    module = name.rpartition(".")[0]
    return ParameterFact(name, module, **{"kind": "Linear", "shape": (2, 2), "numel": 4, "optimizer": "adam", **values})


def run_of(frames, *, facts=None, modules=(), events=(), meta=None):
    recorder = MemoryRecorder(meta=meta or {})
    if facts is not None:
        told = Facts(parameters={each.name: each for each in facts}).to_json()
        recorder.event({"kind": "facts", "step": 0, "time": 0.0, "facts": told})
    for each in frames:
        recorder.put(each, keep=True)
    if modules:
        recorder.put_module_rows(modules)
    for event in events:
        recorder.event(event)
    recorder.close()
    return recorder.run


def unpacked(packed):
    """What the page's script makes of a packed array, written down anew."""
    kind = {"f4": np.dtype("<f4"), "f8": np.dtype("<f8"), "i4": np.dtype("<i4")}[packed["t"]]
    return np.frombuffer(base64.b64decode(packed["b"]), kind).reshape(packed["n"])


def strict(payload):
    """The payload as the page gets it; fails where it is not strict JSON."""
    return json.loads(json.dumps(payload, allow_nan=False))
