import os
import time

import numpy as np
import pytest
from record_samples import frame, table

from gradmedic.frame import Frame
from gradmedic.record import MemoryRecorder, Recorder, open_run
from gradmedic.record.rows import RowBuilder
from gradmedic.record.schema import SCHEMAS
from gradmedic.record.stream import TIGHT, StreamEncoder


def size_of(folder):
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:  # replaced just now
            continue
    return total


def test_five_thousand_parameters_and_two_thousand_records_stay_within_the_budget_at_constant_cost(tmp_path):
    budget = 16 << 20
    recorder = Recorder(tmp_path, meta={}, budget=budget)
    shared = table(5000)
    largest, seconds = 0, []
    for step in range(2000):
        begin = time.process_time()  # the thread that writes included, other programs on a busy machine not
        recorder.put(Frame(step, "adam", loss=1.0, tensors=shared), keep=True)
        if step % 50 == 49:
            recorder.flush(None)
            largest = max(largest, size_of(tmp_path))
        seconds.append(time.process_time() - begin)
    recorder.close()
    assert max(largest, size_of(tmp_path)) <= budget
    assert recorder.problem is None
    assert recorder.dropped == 0
    assert sum(seconds[1500:]) <= sum(seconds[:500])
    run = open_run(tmp_path)
    assert len(run.series("step")) == 2000
    steps = run.matrix("norm")[0]
    assert steps[0] == 0
    assert steps[-1] > 1900
    assert len(steps) >= 16
    assert run.problems == []


def test_a_long_run_is_thinned_evenly_but_for_its_beginning_and_its_findings(tmp_path):
    budget = 6 << 20
    recorder = Recorder(tmp_path, meta={}, budget=budget)
    tables = [table(50, seed) for seed in range(97)]
    largest = 0
    for step in range(8000):
        recorder.put(Frame(step, "adam", loss=1.0, tensors=tables[step % 97]), keep=True)
        if step == 3000:
            recorder.protect(step)
        if step % 200 == 199:
            recorder.flush(None)
            largest = max(largest, size_of(tmp_path))
    recorder.close()
    assert max(largest, size_of(tmp_path)) <= budget
    assert recorder.dropped == 0
    run = open_run(tmp_path)
    assert run.series("step").tolist() == list(range(8000))
    steps = run.matrix("norm")[0]
    kept = set(steps.tolist())
    assert set(range(100)) <= kept
    assert set(range(2950, 3051)) <= kept
    assert set(range(7936, 8000)) <= kept
    gaps = np.diff(steps[(steps >= 100) & ((steps < 2950) | (steps > 3050)) & (steps < 7936)])
    gaps = np.delete(gaps, gaps.argmax())  # across the finding
    assert set(gaps.tolist()) <= {4, 8, 12, 16, 24, 32}
    assert gaps.max() <= 2 * np.median(gaps)
    assert size_of(tmp_path) > budget / 4
    assert len(os.listdir(tmp_path)) < 60


@pytest.mark.parametrize("memory", [False, True])
def test_scalars_of_very_many_steps_are_bounded_too(tmp_path, memory):
    budget = 1 << 20
    recorder = MemoryRecorder(meta={}, budget=budget) if memory else Recorder(tmp_path, meta={}, budget=budget)
    for step in range(20_000):
        recorder.put(Frame(step, "adam", time=step, loss=np.sin(step), grad_norm=np.cos(step)), keep=False)
        if step % 500 == 499:
            recorder.flush(None)
    run = recorder.run
    steps = run.series("step")
    assert recorder.dropped == 0
    assert steps[:100].tolist() == list(range(100))
    assert len(steps) > 1000
    assert steps[-1] > 19_900
    np.testing.assert_array_equal(run.series("loss"), np.sin(steps.astype(int)))
    assert sum(recorder._store.sizes().values()) <= budget
    recorder.close()


def test_many_small_flushes_do_not_make_a_large_file(tmp_path):
    recorder = Recorder(tmp_path, meta={}, budget="1MB")
    for step in range(300):
        recorder.put(frame(step, logged={"a": 1.0}), keep=True)
        assert recorder.flush()
    recorder.close()
    assert open_run(tmp_path).series("step").tolist() == list(range(300))
    assert size_of(tmp_path) < 300 * 300


def test_what_is_closed_is_as_small_as_if_it_had_been_written_in_one_piece(tmp_path):
    recorder = Recorder(tmp_path, meta={})
    rows = [(frame(step, tensors=20), step) for step in range(60)]
    for each, _ in rows:
        recorder.put(each, keep=True)
        assert recorder.flush()
    recorder.close()
    for kind, build in (("tensors", RowBuilder().tensors), ("steps", RowBuilder().steps)):
        (path,) = tmp_path.glob(f"{kind}-*")
        encoder = StreamEncoder(SCHEMAS[kind], TIGHT)
        assert path.stat().st_size == pytest.approx(len(encoder.encode(build(rows)) + encoder.end()), rel=0.02)


def test_events_beyond_their_share_are_dropped_but_findings_are_kept(tmp_path):
    recorder = Recorder(tmp_path, meta={}, budget="1MB")
    for step in range(2000):
        recorder.event({"kind": "clipped", "step": step, "note": "x" * 100})
    recorder.event({"kind": "finding", "code": "GM101"})
    recorder.close()
    events = open_run(tmp_path).events
    assert size_of(tmp_path) <= 1 << 20
    assert recorder.dropped == 2000 - sum(event["kind"] == "clipped" for event in events)
    assert [event["kind"] for event in events[-2:]] == ["finding", "end"]
    assert "no room for more events" in recorder.problem


def test_processes_share_the_budget_of_a_folder(tmp_path):
    budget = 2 << 20
    recorders = [Recorder(tmp_path, meta={}, budget=budget, rank=rank, join=True) for rank in range(2)]
    shared = table(50)
    for recorder in recorders:
        recorder.put(frame(0), keep=False)
        recorder.flush(None)
        recorder._writer._looked_at = -1e9
    for step in range(1, 600):
        for recorder in recorders:
            recorder.put(Frame(step, "adam", tensors=shared), keep=True)
            if step % 100 == 0:
                recorder.flush(None)
    for recorder in recorders:
        recorder.close()
    assert size_of(tmp_path) <= budget
    assert open_run(tmp_path).steps.num_rows == 1200
