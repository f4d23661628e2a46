import errno
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from record_samples import frame, table

from gradmedic.frame import Frame
from gradmedic.record import MemoryRecorder, Recorder, open_run
from gradmedic.record import intake as intake_module
from gradmedic.record.store import FolderStore


def refuse(literal):
    raise AssertionError(f"{literal} is not strict JSON")


def test_files_are_created_lazily_and_closed_once(tmp_path):
    recorder = Recorder(tmp_path / "a" / "run", meta={"x": float("nan")})
    assert [path.name for path in recorder.path.iterdir()] == ["run.json"]
    json.loads((recorder.path / "run.json").read_text(), parse_constant=refuse)
    recorder.put(frame(0), keep=True)
    recorder.event({"kind": "late", "value": float("inf")})
    recorder.close("halted")
    recorder.close("again")
    kinds = sorted(path.name.split("-")[0] for path in recorder.path.iterdir())
    assert kinds == ["events", "run.json", "steps"]
    lines = next(recorder.path.glob("events-*")).read_text().splitlines()
    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [event["kind"] for event in events] == ["late", "end"]
    assert events[1]["reason"] == "halted"
    assert events[0]["time"] == pytest.approx(time.time(), abs=60)
    recorder.put(frame(1), keep=True)
    assert recorder.dropped == 1


def test_written_within_a_second_without_asking(tmp_path):
    recorder = Recorder(tmp_path, meta={})
    recorder.put(frame(0, tensors=3), keep=True)
    deadline = time.monotonic() + 10
    run = open_run(tmp_path)
    while run.reload().tensors.num_rows == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert run.tensors.num_rows == 3
    recorder.close()


def test_put_costs_the_training_thread_little():
    recorder = MemoryRecorder(meta={})
    shared = table(149)
    spent = []
    for step in range(300):
        one = Frame(step, "adam", loss=1.0, tensors=shared)
        begin = time.perf_counter()
        recorder.put(one, keep=True)
        spent.append(time.perf_counter() - begin)
    recorder.close()
    assert np.median(spent) < 100e-6


def test_flight_recorder_writes_what_was_held_and_protects_it(tmp_path):
    recorder = Recorder(tmp_path, meta={}, flight=64)
    for step in range(200):
        recorder.put(frame(step, tensors=2), keep=step % 50 == 0)
    assert recorder.run.matrix("norm")[0].tolist() == [0, 50, 100, 150]
    recorder.dump_flight()
    recorder.dump_flight()
    run = recorder.run
    assert run.matrix("norm")[0].tolist() == [0, 50, 100, *range(136, 200)]
    assert run.tensors.num_rows == 2 * 67
    assert sum(len(each.tensors) > 0 for each in run.frames()) == 67
    recorder.close()
    assert recorder.dropped == 0


def test_frames_without_tables_do_not_push_others_out_of_the_flight_recorder():
    recorder = MemoryRecorder(meta={}, flight=4)
    for step in range(100):
        recorder.put(frame(step, tensors=2 if step % 25 == 0 else 0), keep=False)
    recorder.dump_flight()
    assert recorder.run.matrix("norm")[0].tolist() == [0, 25, 50, 75]
    recorder.close()


class SlowStore:
    """Makes every append of a record block until it is released."""

    def __init__(self, monkeypatch):
        self.release = threading.Event()
        self.entered = threading.Event()
        original = FolderStore.append

        def append(store, name, data, size):
            self.entered.set()
            self.release.wait(20)
            original(store, name, data, size)

        monkeypatch.setattr(FolderStore, "append", append)


def test_a_slow_file_system_stalls_nothing_and_drops_tables_first(tmp_path, monkeypatch):
    slow = SlowStore(monkeypatch)
    monkeypatch.setattr(intake_module, "_WAITING_BYTES", 2**20)
    recorder = Recorder(tmp_path, meta={})
    recorder.put(frame(0), keep=True)
    assert not recorder.flush(0.2)
    assert slow.entered.wait(5)
    begin = time.perf_counter()
    shared = table(149)
    for step in range(1, 500):
        recorder.put(Frame(step, "adam", loss=0.5, tensors=shared), keep=True)
    assert time.perf_counter() - begin < 2
    assert recorder.dropped > 0
    slow.release.set()
    recorder.close()
    run = open_run(tmp_path)
    assert run.series("step").tolist() == list(range(500))
    tables = len(run.matrix("norm")[0])
    assert tables + recorder.dropped == 499
    assert tables > 20
    assert run.events[-1]["dropped"] == recorder.dropped


def fill_disk(monkeypatch, allowed):
    """Every write beyond `allowed` bytes fails half-way, as on a full disk; returns the switch to free it."""
    state = {"left": allowed, "full": True}
    original = os.write

    def write(handle, data):
        if not state["full"] or handle <= 2:
            return original(handle, data)
        if not state["left"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = original(handle, bytes(data[: state["left"]]))
        state["left"] -= count
        return count

    monkeypatch.setattr("gradmedic.record.store.os.write", write)
    return state


def test_a_full_disk_is_said_once_counted_and_survived(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, meta={})
    for step in range(20):
        recorder.put(frame(step, tensors=10), keep=True)
    assert recorder.flush()
    state = fill_disk(monkeypatch, 1000)
    for step in range(20, 40):
        recorder.put(frame(step, tensors=10), keep=True)
    recorder.flush()
    assert "No space left" in recorder.problem
    assert recorder.dropped >= 20
    for step in range(40, 50):
        recorder.put(frame(step, tensors=10), keep=True)
    recorder.flush()
    problem = recorder.problem
    state["full"] = False
    recorder._writer._resume_at = 0.0
    for step in range(50, 60):
        recorder.put(frame(step, tensors=10), keep=True)
    recorder.close()
    assert recorder.problem == problem
    run = open_run(tmp_path)
    steps = run.matrix("norm")[0].tolist()
    assert steps[:20] == list(range(20))
    assert steps[-10:] == list(range(50, 60))
    assert run.problems == []
    assert run.events[-1]["problem"] == problem


def test_a_folder_that_vanishes_stops_nothing(tmp_path):
    recorder = Recorder(tmp_path / "run", meta={})
    recorder.put(frame(0, tensors=3), keep=True)
    assert recorder.flush()
    shutil.rmtree(tmp_path / "run")
    for step in range(1, 200):
        recorder.put(frame(step, tensors=3), keep=True)
    assert recorder.flush(10)
    assert recorder.run.reload() is not None
    recorder.close()
    assert "FileNotFoundError" in recorder.problem
    assert recorder.dropped > 190
    assert not (tmp_path / "run").exists()


def test_a_limit_on_file_size_is_met_with_further_files(tmp_path):
    recorder = Recorder(tmp_path, meta={})
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60000, usual[1]))
        for step in range(100):
            recorder.put(frame(step, tensors=20), keep=True)
            if step % 10 == 9:
                recorder._writer._resume_at = 0.0
                recorder.flush()
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert "File too large" in recorder.problem
    run = open_run(tmp_path)
    assert run.problems == []
    assert len(run.series("step")) == 100
    assert len(run.matrix("norm")[0]) > 60
    assert len(list(tmp_path.glob("tensors-*"))) > 1


def run_python(code, folder, check=0):
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), paths], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == check, done.stderr
    return done.stdout


def test_a_record_that_nobody_closed_is_closed_at_exit_and_with_the_last_reference(tmp_path):
    code = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from gradmedic.record import Recorder
from record_samples import frame
recorder = Recorder(sys.argv[1], meta={})
recorder.put(frame(0, tensors=3), keep=True)
"""
    run_python(code, tmp_path / "exit")
    run = open_run(tmp_path / "exit")
    assert run.tensors.num_rows == 3
    assert run.events[-1]["reason"] == "interpreter exit"
    recorder = Recorder(tmp_path / "lost", meta={})
    recorder.put(frame(0), keep=True)
    del recorder
    gc.collect()
    assert open_run(tmp_path / "lost").events[-1]["kind"] == "end"
    assert not any(thread.name == "gradmedic-record" for thread in threading.enumerate())


def test_recording_imports_no_pandas(tmp_path):
    fake = tmp_path / "site" / "pandas"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise ImportError('imported')")
    code = f"""
import sys
sys.path[:0] = [{str(fake.parent)!r}, *sys.argv[2].split(":")]
seen = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        seen.append(name)
sys.meta_path.insert(0, Watch())
from gradmedic.record import Recorder
from record_samples import frame, table
recorder = Recorder(sys.argv[1], meta={{}}, budget="256KB")
for step in range(400):
    recorder.put(frame(step, tensors=20, logged={{"a": 1.0}}), keep=True)
    if step % 20 == 0:
        recorder.flush()
recorder.put_module_rows([{{"step": 1, "module": "m", "norm": 1.0}}])
recorder.run.matrix("norm"); recorder.run.series("loss"); list(recorder.run.frames())
recorder.close()
assert recorder.problem is None, recorder.problem
print("pandas" in seen)
"""
    assert run_python(code, tmp_path / "run").strip() == "False"


@pytest.mark.parametrize("folder", [True, False])
def test_a_forked_child_writes_to_files_of_its_own(tmp_path, folder):
    recorder = Recorder(tmp_path, meta={}) if folder else MemoryRecorder(meta={})
    for step in range(10):
        recorder.put(frame(step, tensors=3), keep=True)
    child = os.fork()
    if child == 0:
        try:
            recorder.put(frame(100, tensors=3), keep=True)
            ok = recorder.flush(20) and 100 in recorder.run.series("step").tolist()
            recorder.close()
            os._exit(0 if ok and recorder.problem is None else 1)
        finally:
            os._exit(2)
    silent = os.fork()
    if silent == 0:
        recorder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.waitpid(silent, 0)[1] == 0
    recorder.put(frame(10), keep=True)
    run = recorder.run
    assert run.series("step").tolist()[:11] == list(range(11))
    assert run.problems == []
    recorder.close()
    if folder:
        run = open_run(tmp_path)
        assert run.steps.num_rows == 12
        assert len(set(run.steps["process"].to_pylist())) == 2
        assert [event["kind"] for event in run.events] == ["end", "end"]


def test_put_never_raises_whatever_it_is_given():
    recorder = MemoryRecorder(meta={})
    recorder.put(None, keep=True)
    recorder.put(frame(0, tensors=2), keep=True)
    recorder.event(None)
    recorder.event({"kind": object(), "loop": recorder})
    recorder.put_module_rows([{"step": "one"}])
    recorder.put_module_rows(3)
    recorder.protect("here")
    assert recorder.run.series("step").tolist() == [0]
    recorder.close()
    assert recorder.problem
    assert recorder.dropped >= 3


def test_records_hold_no_open_files(tmp_path):
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    recorder = Recorder(tmp_path, meta={})
    recorder.put(frame(0, tensors=2), keep=True)
    recorder.flush()
    after = len(os.listdir("/proc/self/fd")) if before else 0
    recorder.close()
    assert after == before
