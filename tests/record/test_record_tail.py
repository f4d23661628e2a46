"""How a run ended stays in its record at full detail, however much of it had to be thinned."""

import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import assert_same_table, table

from gradmedic.frame import Frame
from gradmedic.record import MemoryRecorder, Recorder, open_run
from gradmedic.record.ordering import in_order


def put_steps(recorder, steps, tables=None, every=1):
    for step in range(steps):
        made = Frame(step, "adam", time=float(step), loss=np.sin(step))
        if tables is not None:
            made.tensors = tables[step % len(tables)]
        recorder.put(made, keep=step % every == 0)
        if step % 500 == 499:
            recorder.flush(None)


def bytes_in(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder))


@pytest.mark.parametrize(("budget", "steps"), [("1MB", 20_000), ("256KB", 6000), ("256KB", 20_037)])
def test_the_last_64_steps_of_a_thinned_run_are_all_there_and_in_order(tmp_path, budget, steps):
    recorder = Recorder(tmp_path, meta={}, budget=budget)
    put_steps(recorder, steps)
    recorder.close()
    run = open_run(tmp_path)
    kept = run.series("step").astype(int)
    assert len(kept) < steps
    assert kept[:100].tolist() == list(range(100))
    assert kept[-64:].tolist() == list(range(steps - 64, steps))
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(run.series("loss"), np.sin(kept))
    assert [frame.step for frame in run.frames(steps - 64)] == list(range(steps - 64, steps))
    assert recorder.dropped == 0
    assert recorder.problem is None
    assert run.problems == []
    assert bytes_in(tmp_path) <= (1 << 20 if budget == "1MB" else 256 << 10)


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_a_writer_that_lags_and_writes_few_rows_at_a_time_keeps_the_tail_too(tmp_path, rows):
    recorder = Recorder(tmp_path, meta={}, budget="256KB")
    for step in range(6000):
        recorder.put(Frame(step, "adam", time=float(step), loss=np.sin(step)), keep=True)
        if step % 500 == 499 or (step >= 5700 and step % rows == 0):
            recorder.flush(None)
    recorder.close()
    kept = open_run(tmp_path).series("step").astype(int)
    assert kept[-64:].tolist() == list(range(5936, 6000))
    assert bytes_in(tmp_path) <= 256 << 10


@pytest.mark.parametrize("every", [1, 3])
def test_so_are_their_tables_those_that_were_asked_for(tmp_path, every):
    recorder = Recorder(tmp_path, meta={}, budget="1MB")
    tables = [table(20, seed) for seed in range(31)]
    put_steps(recorder, 3000, tables, every=every)
    recorder.close()
    run = open_run(tmp_path)
    kept = run.matrix("norm")[0].astype(int).tolist()
    asked = list(range(0, 3000, every))
    assert len(kept) < len(asked)
    assert [step for step in kept if step >= 2936] == [step for step in asked if step >= 2936]
    last = list(run.frames(2936))
    assert [frame.step for frame in last] == list(range(2936, 3000))
    for frame in last:
        if frame.step % every == 0:
            assert_same_table(frame.tensors, tables[frame.step % 31])
        else:
            assert frame.tensors.names == ()
    assert bytes_in(tmp_path) <= 1 << 20
    assert recorder.dropped == 0


def test_the_last_steps_of_each_optimizer_stay_in_the_order_of_time():
    recorder = MemoryRecorder(meta={}, budget="3MB")
    made = []
    for step in range(15_000):
        moment = float(step)
        recorder.put(Frame(step, "critic", time=moment, loss=np.sin(moment), grad_norm=np.cos(moment)), keep=False)
        made.append(("critic", step))
        if step % 5 == 4:
            recorder.put(Frame(step // 5, "generator", time=moment + 0.5), keep=False)
            made.append(("generator", step // 5))
        if step % 500 == 499:
            recorder.flush(None)
    recorder.close()
    kept = [(frame.optimizer, frame.step) for frame in recorder.run.frames()]
    assert len(kept) < len(made)
    for name, steps in (("critic", 15_000), ("generator", 3000)):
        own = [step for optimizer, step in kept if optimizer == name]
        assert own[-64:] == list(range(steps - 64, steps))
    order = {key: at for at, key in enumerate(made)}
    assert (np.diff([order[key] for key in kept]) > 0).all()


def test_a_budget_that_cannot_hold_64_tables_keeps_the_newest_of_them(tmp_path):
    recorder = Recorder(tmp_path, meta={}, budget="1MB")
    put_steps(recorder, 400, [table(300)])
    recorder.close()
    run = open_run(tmp_path)
    kept = run.matrix("norm")[0].astype(int).tolist()
    assert kept[-3:] == [397, 398, 399]
    assert run.series("step")[-64:].tolist() == list(range(336, 400))
    assert bytes_in(tmp_path) <= 1 << 20
    assert recorder.problem is None


@settings(deadline=None)
@given(st.data(), st.lists(st.sampled_from("ab"), min_size=1, max_size=60))
def test_late_rows_go_back_to_their_places(data, optimizers):
    """The order is that in which steps were made; within an optimizer also by a clock that stands still."""
    counts: dict[str, int] = {}
    rows = []
    for at, name in enumerate(optimizers):
        rows.append({"optimizer": name, "ordinal": counts.get(name, 0), "time": float(at), "at": at})
        counts[name] = counts.get(name, 0) + 1
    late = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    written = [row for at, row in enumerate(rows) if at not in late] + [
        row for at, row in enumerate(rows) if at in late
    ]
    sorted_rows = in_order(as_table(written)).to_pylist()
    stopped = in_order(as_table([{**row, "time": 7.0} for row in written])).to_pylist()
    for name, count in counts.items():
        for found in (sorted_rows, stopped):
            assert [row["ordinal"] for row in found if row["optimizer"] == name] == list(range(count))
    orders = [[row["ordinal"] for row in written if row["optimizer"] == name] for name in counts]
    if any(order != sorted(order) for order in orders):
        assert [row["at"] for row in sorted_rows] == list(range(len(rows)))
    else:
        assert sorted_rows == as_table(written).to_pylist()


def as_table(rows):
    made = pa.Table.from_pylist(rows)
    return made.set_column(0, "optimizer", made["optimizer"].dictionary_encode())
