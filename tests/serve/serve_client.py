"""A browser's questions, and runs to ask about."""

import http.client
import json
import time

import numpy as np

from gradmedic.frame import TENSOR_COLUMNS, Frame, TensorTable
from gradmedic.record import Recorder
from gradmedic.types import COUNT_COLUMNS


class Client:
    """Asks a server; `get` returns (status, headers, body)."""

    def __init__(self, server):
        self.port = int(server.url.rstrip("/").rpartition(":")[2])

    def ask(self, method, path, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path):
        status, _, body = self.ask("GET", path)
        assert status == 200, (status, body)
        return json.loads(body)

    def runs(self):
        return self.json("/api/runs")

    def until(self, path, test, seconds=8.0):
        """The first answer that passes the test."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.json(path)
            if test(found):
                return found
            time.sleep(0.05)
        raise AssertionError(found)


def frame(step, names=("a.weight", "b.weight"), **scalars):
    size = len(names)
    columns = {name: np.zeros(size, np.int64 if name in COUNT_COLUMNS else np.float64) for name in TENSOR_COLUMNS}
    columns |= {"numel": np.full(size, 4), "norm": np.full(size, step + 1.0), "status": np.zeros(size, np.int64)}
    return Frame(step, "adam", tensors=TensorTable(tuple(names), columns), **{"loss": 1.0 / (step + 1), **scalars})


def record(folder, steps=20, *, names=("a.weight", "b.weight"), close=True, start=0, **given):
    recorder = Recorder(folder, meta={"command": ["python", "train.py"]}, **given)
    for step in range(start, start + steps):
        recorder.put(frame(step, names), keep=True)
    recorder.flush()
    if close:
        recorder.close()
    return recorder


def grid(payload, name="norm"):
    (found,) = [each for each in payload["grids"] if each["id"] == name]
    return found
