import os
import random
import signal
import time

import pytest
from record_samples import frame

from gradmedic.record import Recorder, open_run


def train_until_killed(folder, pipe):
    recorder = Recorder(folder, meta={"script": "train.py"})
    recorder.event({"kind": "start"})
    for step in range(100_000):
        recorder.put(frame(step, tensors=5), keep=True)
        os.write(pipe, b".")
        time.sleep(0.005)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_run_loses_at_most_the_last_flush(tmp_path, seed):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train_until_killed(tmp_path, writing)
        finally:
            os._exit(1)
    os.close(writing)
    put = 0
    goal = 100 + random.Random(seed).randrange(200)
    while put < goal:
        put += len(os.read(reading, 4096))
    os.kill(child, signal.SIGKILL)
    while more := os.read(reading, 4096):
        put += len(more)
    os.close(reading)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    run = open_run(tmp_path)
    steps = run.series("step").tolist()
    assert steps == list(range(len(steps)))
    assert put - len(steps) <= 64 + 32  # and what came while those were written
    tables = run.matrix("norm")[0].tolist()
    assert tables == list(range(len(tables)))
    assert put - len(tables) <= 64 + 32
    assert [event["kind"] for event in run.events] == ["start"]
    assert run.meta["script"] == "train.py"
