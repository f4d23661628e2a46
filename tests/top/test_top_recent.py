"""The tables that are kept are those that the record has, however they came."""

from __future__ import annotations

import numpy as np
import pytest
from top_runs import NAMES, frame, write_run

import gradmedic as gm
from gradmedic.record import Recorder
from gradmedic.record.store import FolderStore
from gradmedic.report.views import tensor_grid
from gradmedic.top.recent import FIRST, LATEST, RecentTables


def recent_of(folder):
    run = gm.open_run(folder)
    process = run.steps["process"].to_pylist()[-1]
    return RecentTables(FolderStore(folder), 0, process)


def expected(folder, column, steps):
    grid = tensor_grid(gm.open_run(folder), column)
    places = [grid.steps.tolist().index(step) for step in steps]
    return grid.names, grid.values[places]


def assert_as_recorded(recent, folder):
    kept = recent.tables["adam"]
    steps = [each.step for each in (*kept.first, *kept.latest)]
    for column, name in (("norm", "norm"), ("ratio", "update_ratio"), ("zeros", "zero_share")):
        names, values = expected(folder, name, steps)
        order = [kept.names[each] for each in names]
        np.testing.assert_array_equal(kept.matrix(column)[:, order], values, err_msg=name)
    return steps


def test_all_at_once(tmp_path):
    folder = write_run(tmp_path / "run", steps=20)
    recent = recent_of(folder)
    assert recent.poll()
    assert assert_as_recorded(recent, folder) == list(range(20))
    assert not recent.poll()


def test_piece_by_piece(tmp_path):
    recorder = Recorder(tmp_path / "run", meta={})
    recent = None
    for step in range(300):
        nan = {
            "nan_count": np.array([step % 7 == 0, 0, 0, 0, 0]).astype(int),
            "status": np.array([0, step % 3, 0, 1, 2]),
        }
        recorder.put(frame(step, columns=nan), keep=step % 2 == 0)
        if step % 40 == 20:
            recorder.flush(10)
            recent = recent or recent_of(tmp_path / "run")
            assert recent.poll()
    recorder.close()
    recent.poll()
    assert assert_as_recorded(recent, tmp_path / "run") == list(range(0, 300, 2))


def test_bounded_and_late_steps_are_there(tmp_path):
    folder = write_run(tmp_path / "run", steps=FIRST + LATEST + 50)
    recent = recent_of(folder)
    recent.poll()
    steps = assert_as_recorded(recent, folder)
    assert steps == [*range(FIRST), *range(FIRST + 50, FIRST + LATEST + 50)]


def test_a_record_that_is_thinned_while_it_is_followed(tmp_path):
    names = tuple(f"layer{at}" for at in range(40))
    recorder = Recorder(tmp_path / "run", meta={}, budget="256KB")
    rng = np.random.default_rng(0)
    recent = None
    for step in range(300):
        recorder.put(frame(step, names, columns={"norm": rng.random(40)}), keep=True)
        if step % 30 == 29:
            recorder.flush(10)
            recent = recent or recent_of(tmp_path / "run")
            recent.poll()
            # What comes in may be as sparse as what is kept already.
            assert recent.tables["adam"].step == gm.open_run(tmp_path / "run").matrix("norm")[0][-1]
    recorder.close()
    steps = [each.step for each in recent.tables["adam"].latest]
    assert steps == sorted(set(steps))
    # Opened only now, what has been thinned is gone, and the end is whole.
    late = recent_of(tmp_path / "run")
    late.poll()
    assert late.tables["adam"].step == gm.open_run(tmp_path / "run").matrix("norm")[0][-1] > 250
    assert late.tables["adam"].first[0].step == 0


def test_a_torn_tail_is_read_once_it_is_whole(tmp_path):
    folder = write_run(tmp_path / "run", steps=10)
    file = next(folder.glob("tensors-*.arrows"))
    whole = file.read_bytes()
    recent = recent_of(folder)
    file.write_bytes(whole[: len(whole) // 2])
    recent.poll()
    file.write_bytes(whole)
    recent.poll()
    assert assert_as_recorded(recent, folder) == list(range(10))


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 5000, b"nonsense"])
def test_garbage_is_survived(tmp_path, garbage):
    folder = write_run(tmp_path / "run", steps=10)
    recent = recent_of(folder)
    next(folder.glob("tensors-*.arrows")).write_bytes(garbage)
    assert not recent.poll()
    assert recent.tables == {}


def test_tensors_that_come_later(tmp_path):
    recorder = Recorder(tmp_path / "run", meta={})
    recorder.put(frame(0, NAMES[:2]), keep=True)
    recorder.put(frame(1, NAMES), keep=True)
    recorder.close()
    recent = recent_of(tmp_path / "run")
    recent.poll()
    norm = recent.tables["adam"].matrix("norm")
    assert norm.shape == (2, 5)
    assert np.isnan(norm[0]).tolist() == [False, False, True, True, True]
