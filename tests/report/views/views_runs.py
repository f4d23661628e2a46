"""Small runs made by hand, of which everything is known."""

import numpy as np

from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import TENSOR_COLUMNS, Frame, TensorTable
from gradmedic.record import MemoryRecorder
from gradmedic.types import COUNT_COLUMNS


def table(names, histogram=None, **columns):
    """A tensor table whose columns are zero where nothing is given."""
    size = len(names)
    made = {name: np.zeros(size, np.int64 if name in COUNT_COLUMNS else np.float64) for name in TENSOR_COLUMNS}
    made["status"] = np.zeros(size, np.int64)
    made["numel"] = np.full(size, 4, np.int64)
    for name, values in columns.items():
        made[name] = np.broadcast_to(np.asarray(values), (size,))
    return TensorTable(tuple(names), made, histogram)


def frame(step, names=(), optimizer="adam", *, histogram=None, time=None, keep=None, scalars=None, **columns):
    tensors = table(names, histogram, **columns) if names else TensorTable()
    values = {"time": float(step) if time is None else time, **(scalars or {})}
    return Frame(step, optimizer, tensors=tensors, **values)


def run_of(frames, *, facts=None, modules=(), events=(), meta=None):
    """A run in memory, closed."""
    recorder = MemoryRecorder(meta=meta or {})
    if facts is not None:
        parameters = {fact.name: fact for fact in facts}
        recorder.event({"kind": "facts", "step": 0, "time": 0.0, "facts": Facts(parameters=parameters).to_json()})
    for each in frames:
        recorder.put(each, keep=True)
    if modules:
        recorder.put_module_rows(modules)
    for event in events:
        recorder.event(event)
    recorder.close()
    return recorder.run


def fact(name, **values):
    module = name.rpartition(".")[0]
    return ParameterFact(name, module, **{"kind": "Linear", "shape": (2, 2), "numel": 4, "optimizer": "adam", **values})
