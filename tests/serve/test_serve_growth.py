"""The page's tables of a run that grows are those of the whole record, whatever was read again to make them."""

import json

import numpy as np
import pytest
from serve_client import frame, grid

from gradmedic.frame import Frame, TensorTable
from gradmedic.record import Recorder, Run
from gradmedic.record.store import FolderStore
from gradmedic.report.page.pack import unpack
from gradmedic.report.page.parts import tables_part
from gradmedic.report.views.source import Source
from gradmedic.serve import growth
from gradmedic.serve.growth import Growth


@pytest.fixture(autouse=True)
def no_whole_is_cheap(monkeypatch):
    monkeypatch.setattr(growth, "CHEAP_SECONDS", 0.0)
    monkeypatch.setattr(growth, "REST", 0.0)


@pytest.fixture
def wholes(monkeypatch):
    """Steps of the record each time that all of it was read."""
    read = []

    def counted(source, *rest):
        read.append(len(np.unique(source.tensors["step"].to_numpy())) if source.tensors.num_rows else 0)
        return tables_part(source, *rest)

    monkeypatch.setattr(growth, "tables_part", counted)
    return read


class Grows:
    """A run whose tensors have weights measured every eighth step, cosines, histograms and now and then an infinity."""

    def __init__(self, folder, names=("a.weight", "a.bias", "b.weight")):
        self.recorder = Recorder(folder, meta={})
        self.names, self.step, self.rng = names, 0, np.random.default_rng(0)
        self.run = Run(FolderStore(folder), folder)

    def steps(self, count, inf=()):
        for step in range(self.step, self.step + count):
            self.recorder.put(self.frame(step, step in inf), keep=True)
        self.step += count
        self.recorder.flush()
        return self.run.reload()

    def frame(self, step, broken):
        size = len(self.names)
        table = frame(step, self.names).tensors
        columns = {name: np.array(table.columns[name]) for name in table.columns}
        columns["norm"] = self.rng.lognormal(size=size)
        columns |= {"update_norm": 0.01 * columns["norm"], "cosine_prev": self.rng.uniform(-1, 1, size)}
        columns |= {"max_abs": columns["norm"] / 2, "min_abs": columns["norm"] * 1e-3}
        columns["weight_norm"] = np.full(size, 3.0 + step if step % 8 == 0 else np.nan)
        columns["inf_count"][0] = int(broken)
        histogram = np.zeros((size, 64), np.int64)
        histogram[:, 46 + step % 3] = 4
        tensors = TensorTable(self.names, columns, histogram if step % 10 == 0 else None)
        return Frame(step, "adam", loss=1.0, grad_norm=1.0, tensors=tensors)


def test_every_new_step_is_where_a_whole_reading_has_it(tmp_path, wholes):
    run = Grows(tmp_path / "exp")
    held = Growth(200)
    held.update(run.steps(30, inf=(7,)), [])
    for count in (1, 5, 13, 2):
        part = held.update(run.steps(count, inf=(33,)), [])
        expected = tables_part(Source(run.run), [], 200)
        assert held.owes
        for key in ("grids", "scalars", "layers", "not_judged", "run"):
            assert json.dumps(part[key], sort_keys=True) == json.dumps(expected[key], sort_keys=True), key
        assert part["boxes"][-1] == expected["boxes"][-1]
    assert wholes == [30]
    assert held.update(run.run, [], whole=True) == tables_part(Source(run.run), [], 200)


def test_columns_of_several_steps_keep_what_stands_out_and_end_at_the_newest_step(tmp_path, wholes):
    run = Grows(tmp_path / "exp")
    held = Growth(20)
    held.update(run.steps(100, inf=(7,)), [])
    for _ in range(5):
        part = held.update(run.steps(7, inf=(101, 117)), [])
        found = grid(part)
        first, last, values = (unpack(found[key]) for key in ("first", "last", "values"))
        assert first[0] == 0
        assert (first[1:] == last[:-1] + 1).all()
        assert last[-1] == run.step - 1
        broken = [step for step in (7, 101, 117) if step < run.step]
        assert [np.isinf(values[0, (first <= step) & (step <= last)]).all() for step in broken] == [True] * len(broken)
        assert np.isinf(values[0]).sum() == len(broken)
    assert wholes == [100]


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    run = Grows(tmp_path / "exp")
    held = Growth(200)
    held.update(run.steps(500), [])
    read = []
    whole = growth.new_grids
    monkeypatch.setattr(growth, "new_grids", lambda recent, *rest: read.append(recent) or whole(recent, *rest))
    for _ in range(4):
        held.update(run.steps(20), [])
    # 20 new steps, those of a column that was not complete, and 64 before them.
    assert [source.tensors.num_rows <= 3 * (64 + 25) for source in read] == [True] * 4


def test_what_does_not_follow_is_read_as_a_whole(tmp_path, wholes):
    run = Grows(tmp_path / "exp")
    held = Growth(200)
    held.update(run.steps(30), [])
    run.names = (*run.names, "late.weight")
    part = held.update(run.steps(3), [])
    assert "late.weight" in grid(part)["rows"]
    run.steps(2, inf=(34,))
    part = held.update(run.run, [])
    assert part["tensors"][0]["state"] == "non-finite"
    run.recorder.close()
    with_restart = Grows(tmp_path / "other")
    with_restart.recorder.close()
    again = Recorder(tmp_path / "exp", meta={}, join=True)
    again.put(frame(20, run.names), keep=True)
    again.flush()
    part = held.update(run.run.reload(), [])
    assert unpack(grid(part)["last"])[-1] == 20
    assert wholes == [30, 33, 35, 35]
    again.close()


def test_a_whole_is_made_again_when_its_time_has_come(tmp_path, wholes, monkeypatch):
    run = Grows(tmp_path / "exp")
    held = Growth(200)
    held.update(run.steps(30), [])
    held.update(run.steps(1), [])
    assert (held.owes, held.due) == (True, False)
    monkeypatch.setattr(growth, "WHOLE_SECONDS", 0.0)
    monkeypatch.setattr(growth, "SHARE", 1e9)
    assert held.due
    held.update(run.run, [])
    assert not held.owes
    assert wholes == [30, 31]
