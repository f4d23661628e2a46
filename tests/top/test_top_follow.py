"""A run is followed from before it is there to after it has gone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import numpy as np
from top_runs import NAMES, facts, finding, frame, recorder_of, write_run

from gradmedic.record import Recorder
from gradmedic.top.follow import Follower
from gradmedic.top.judging import Judge, recorded_findings
from gradmedic.top.newer import newest_run


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def follower_of(path, clock=None):
    return Follower(path, Judge("en").findings, clock or Clock())


def test_from_nothing_to_the_end(tmp_path):
    follower = follower_of(tmp_path / "run")
    assert follower.poll().state == "waiting"
    recorder = recorder_of(tmp_path / "run")
    recorder.flush(10)
    snapshot = follower.poll()
    assert (snapshot.state, snapshot.scalars) == ("running", {})
    for step in range(5):
        recorder.put(frame(step), keep=True)
    recorder.flush(10)
    snapshot = follower.poll()
    assert snapshot.state == "running"
    assert snapshot.scalars["adam"].steps.tolist() == [0, 1, 2, 3, 4]
    assert [row.name for row in snapshot.layers.rows] == list(NAMES)
    assert {row.state for row in snapshot.layers.rows} == {"ok"}
    np.testing.assert_allclose(snapshot.layers.last_norm, 10.0 ** -np.arange(5) * 1.04)
    np.testing.assert_allclose(snapshot.layers.ratio, 0.002)
    recorder.put(frame(5), keep=True)
    recorder.close()
    snapshot = follower.poll()
    assert (snapshot.state, snapshot.reason) == ("ended", "finished")
    assert snapshot.scalars["adam"].steps[-1] == 5


def test_a_run_that_says_nothing(tmp_path):
    clock = Clock()
    recorder = recorder_of(tmp_path / "run", host="elsewhere")
    recorder.put(frame(0), keep=True)
    recorder.flush(10)
    follower = follower_of(tmp_path / "run", clock)
    assert follower.poll().state == "running"
    clock.now += 9
    assert follower.poll().state == "running"
    clock.now += 3
    snapshot = follower.poll()
    assert (snapshot.state, round(snapshot.silent)) == ("silent", 12)
    recorder.put(frame(1), keep=True)
    recorder.flush(10)
    assert follower.poll().state == "running"
    recorder.close()


def test_slow_steps_are_not_silence(tmp_path):
    clock = Clock()
    recorder = recorder_of(tmp_path / "run", host="elsewhere")
    recorder.put(frame(0, step_seconds=60.0), keep=True)
    recorder.flush(10)
    follower = follower_of(tmp_path / "run", clock)
    follower.poll()
    clock.now += 200
    assert follower.poll().state == "running"
    clock.now += 200
    assert follower.poll().state == "silent"
    recorder.close()


def test_a_run_whose_process_is_gone(tmp_path):
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    recorder = recorder_of(tmp_path / "whole", host=socket.gethostname())
    recorder.put(frame(0), keep=True)
    recorder.flush(10)
    (tmp_path / "run").mkdir()
    for file in (tmp_path / "whole").iterdir():
        name = file.name.replace(f"{os.getpid():x}x", f"{int(child.stdout):x}x")
        shutil.copy(file, tmp_path / "run" / name)
    recorder.close()
    clock = Clock()
    follower = follower_of(tmp_path / "run", clock)
    assert follower.poll().state == "running"
    clock.now += 12
    assert follower.poll().state == "killed"


def test_a_folder_that_vanishes_and_comes_back(tmp_path):
    write_run(tmp_path / "run")
    follower = follower_of(tmp_path / "run")
    assert follower.poll().state == "ended"
    shutil.rmtree(tmp_path / "run")
    snapshot = follower.poll()
    assert snapshot.state == "gone"
    assert len(snapshot.scalars["adam"].steps) == 20  # what was known is still shown
    write_run(tmp_path / "run", steps=3)
    snapshot = follower.poll()
    assert (snapshot.state, len(snapshot.scalars["adam"].steps)) == ("ended", 3)


def test_the_newest_of_several(tmp_path):
    for at, name in enumerate(("old", "new", "middle")):
        write_run(tmp_path / name, steps=1)
        when = {"old": 1000, "middle": 2000, "new": 3000}[name]
        for file in (tmp_path / name).iterdir():
            os.utime(file, (when, when))
        assert at < 3
    (tmp_path / "no run").mkdir()
    assert newest_run(tmp_path) == (tmp_path / "new", 2)
    assert newest_run(tmp_path / "old") == (tmp_path / "old", 0)
    assert newest_run(tmp_path / "no run") == (None, 0)
    snapshot = follower_of(tmp_path).poll()
    assert (snapshot.name, snapshot.others) == ("new", 2)


def test_a_restart_is_followed(tmp_path):
    write_run(tmp_path / "run", steps=8)
    follower = follower_of(tmp_path / "run")
    follower.poll()
    recorder = Recorder(tmp_path / "run", meta={}, join=True)
    recorder.put(frame(0, columns={"norm": np.full(5, 7.0)}), keep=True)
    recorder.flush(10)
    snapshot = follower.poll()
    assert snapshot.state == "running"
    assert snapshot.scalars["adam"].steps.tolist() == [*range(8), 0]
    assert snapshot.layers.last_norm.tolist() == [7.0] * 5
    recorder.close()


def test_states_and_codes_of_tensors(tmp_path):
    recorder = Recorder(tmp_path / "run", meta={})
    recorder.event(facts(**{NAMES[0]: {"trainable": False}, NAMES[3]: {"reached": False}}))
    for step in range(4):
        columns = {
            "status": np.array([1, 0, 0, 1, 2]),
            "norm": np.array([0.0, 1.0, 0.0, 0.0, 0.0]),
            "nan_count": np.array([0, step == 2, 0, 0, 0]),
        }
        recorder.put(frame(step, columns=columns), keep=True)
    recorder.event(finding(where=(NAMES[1],)))
    recorder.close()
    layers = follower_of(tmp_path / "run").poll().layers
    assert [row.state for row in layers.rows] == ["frozen", "non-finite", "zero", "unused", "not visible"]
    assert layers.codes == [(), ("GM201",), (), (), ()]
    assert int(np.argmax(layers.trouble)) == 1


def test_a_withheld_step_does_no_harm(tmp_path):
    recorder = recorder_of(tmp_path / "run")
    recorder.put(frame(0), keep=True)
    recorder.put(frame(1, skipped=True, columns={"inf_count": np.ones(5, dtype=int)}), keep=True)
    recorder.close()
    layers = follower_of(tmp_path / "run").poll().layers
    assert {row.state for row in layers.rows} == {"ok"}
    assert np.isinf(layers.last_norm).all()


def test_findings_as_recorded_are_ranked_and_said_once(tmp_path):
    events = [finding(severity="warning"), finding(), finding("GM302", severity="error"), {"kind": "finding"}]
    events += [{"kind": "finding", "finding": {"code": "GM1"}}, {"kind": "finding", "finding": 3}]
    found = recorded_findings(events)
    assert [(each.code, each.severity) for each in found] == [("GM201", "critical"), ("GM302", "error")]


def test_a_diagnosis_beside_the_run(tmp_path):
    write_run(tmp_path / "run", steps=30, loss=float("nan"), grad_norm=float("nan"))
    judge = Judge("zh")
    follower = Follower(tmp_path / "run", judge.findings)
    assert follower.poll().findings == []
    judge.consider(tmp_path / "run", 29)
    judge.wait(30)
    assert judge.has_news()
    follower.judged()
    assert "GM201" in [each.code for each in follower.snapshot.findings]
    assert {each.lang for each in follower.snapshot.findings} == {"zh"}
    judge.consider(tmp_path / "run", 29)  # nothing new: no second one
    assert not judge.has_news()


def parts_of(folder):
    return {part.name.split("-")[2] for part in folder.glob("steps-*")}


def test_a_clock_that_is_set_back_does_not_kill(tmp_path):
    """The end is what the process itself has said, not what lies latest by the clock."""
    recorder = recorder_of(tmp_path / "run", host=socket.gethostname())
    for step in range(3):
        recorder.put(frame(step, time=4e9 + step), keep=True)  # an hour, or a century, ahead of the end
    recorder.close()
    clock = Clock()
    follower = follower_of(tmp_path / "run", clock)
    for _ in range(3):
        snapshot = follower.poll()
        assert (snapshot.state, snapshot.reason) == ("ended", "finished")
        clock.now += 3600


def test_a_restart_whose_clock_runs_behind_is_followed(tmp_path):
    recorder = recorder_of(tmp_path / "run")
    for step in range(8):
        recorder.put(frame(step, time=4e9 + step), keep=True)
    recorder.close()
    follower = follower_of(tmp_path / "run")
    assert follower.poll().state == "ended"
    again = Recorder(tmp_path / "run", meta={}, join=True)
    for step in range(2):
        again.put(frame(step, time=1e9 + step, columns={"norm": np.full(5, 7.0)}), keep=True)
        again.flush(10)
        for snapshot in (follower.poll(), follower_of(tmp_path / "run").poll()):
            assert snapshot.state == "running"
            assert snapshot.layers.last_norm.tolist() == [7.0] * 5
    again.close()
    assert follower.poll().state == "ended"
    assert len(parts_of(tmp_path / "run")) == 2


def test_a_run_that_begins_in_the_same_folder(tmp_path):
    clock = Clock()
    first = recorder_of(tmp_path / "first", host="elsewhere")
    first.put(frame(0), keep=True)
    first.flush(10)
    follower = follower_of(tmp_path, clock)
    assert follower.poll().newer == ""
    (tmp_path / "no run").mkdir()
    os.utime(write_run(tmp_path / "second", steps=4), (1000, 1000))  # its files' times do not count
    clock.now += 4
    snapshot = follower.poll()
    assert (snapshot.name, snapshot.newer, snapshot.state) == ("first", "second", "running")
    first.close()
    clock.now += 4
    snapshot = follower.poll()
    assert (snapshot.name, snapshot.newer, snapshot.instead_of) == ("second", "", "first")
    assert len(snapshot.scalars["adam"].steps) == 4
    clock.now += 60
    assert follower.poll().instead_of == ""
    write_run(tmp_path / "third", steps=2)
    clock.now += 4
    assert follower.poll().name == "third"


def test_a_run_asked_for_by_name_is_left_only_when_told_to(tmp_path):
    clock = Clock()
    follower = follower_of(write_run(tmp_path / "first"), clock)
    assert follower.poll().state == "ended"
    assert not follower.take_newer()
    write_run(tmp_path / "second", steps=4)
    clock.now += 4
    snapshot = follower.poll()
    assert (snapshot.name, snapshot.newer) == ("first", "second")
    assert follower.take_newer()
    assert (follower.snapshot.name, follower.snapshot.instead_of) == ("second", "first")
    assert follower.poll().state == "ended"
    assert not follower.take_newer()


def test_ranks_that_part_are_told(tmp_path):
    recorders = [Recorder(tmp_path / "run", meta={}, rank=rank, join=rank > 0) for rank in range(2)]
    for rank, recorder in enumerate(recorders):
        recorder.event(facts())
        for step in range(20 if rank else 12):
            recorder.put(frame(step), keep=True)
        recorder.flush(10)
    follower = follower_of(tmp_path / "run")
    snapshot = follower.poll()
    assert (snapshot.state, snapshot.parted) == ("running", {})  # what differs may not be written yet
    for recorder in recorders:
        recorder.close()
    snapshot = follower.poll()
    assert (snapshot.state, snapshot.parted) == ("ended", {0: 12, 1: 20})
