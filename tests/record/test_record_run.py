import json
import os

import numpy as np
import pytest
from record_samples import assert_same_frame, frame

from gradmedic.errors import InputError
from gradmedic.frame import Frame, TensorTable
from gradmedic.record import MemoryRecorder, Recorder, open_run
from gradmedic.record.processes import in_order_of_beginning


def norms(**values):
    return TensorTable(tuple(values), {"norm": np.array(list(values.values()), dtype=float)})


@pytest.fixture
def gan():
    """Two optimizers, steps interleaved; D makes two steps for each of G's."""
    recorder = MemoryRecorder(meta={"script": "gan.py"})
    for step in range(6):
        recorder.put(
            Frame(step, "D", time=step, loss=float(step), logged={"acc": step / 8}, tensors=norms(d=step)), keep=True
        )
        if step % 2 == 1:
            g = step // 2
            recorder.put(Frame(g, "G", time=step + 0.5, clipped=True, tensors=norms(g1=10 * g, g2=-g)), keep=g > 0)
    recorder.event({"kind": "later", "time": 9.0, "value": np.nan})
    recorder.event({"kind": "earlier", "time": 3.0})
    yield recorder.run
    recorder.close()


def test_series(gan):
    assert gan.optimizers == ["D", "G"]
    assert gan.series("step").tolist() == [0, 1, 0, 2, 3, 1, 4, 5, 2]
    np.testing.assert_array_equal(gan.series("loss", "D"), np.arange(6.0))
    assert np.isnan(gan.series("loss", "G")).all()
    assert gan.series("clipped").dtype == bool
    assert gan.series("optimizer").tolist()[:3] == ["D", "D", "G"]
    np.testing.assert_array_equal(gan.series("acc", "D"), np.arange(6) / 8)
    assert np.isnan(gan.series("acc", "G")).all()


def test_unknown_names_are_answered_with_the_known_ones(gan):
    with pytest.raises(InputError, match=r"no column 'los'.*loss.*acc"):
        gan.series("los")
    with pytest.raises(InputError, match=r"no column 'nrm'.*weight_norm"):
        gan.matrix("nrm")
    with pytest.raises(InputError, match=r"no optimizer 'E'.*D, G"):
        gan.series("loss", "E")
    with pytest.raises(InputError, match="holds lists"):
        gan.series("lrs")


def test_matrix(gan):
    steps, names, values = gan.matrix("norm", "G")
    assert (steps.tolist(), names) == ([1, 2], ["g1", "g2"])
    np.testing.assert_array_equal(values, [[10, -1], [20, -2]])
    steps, names, values = gan.matrix("norm")
    assert (steps.tolist(), names) == ([0, 1, 2, 3, 4, 5], ["d", "g1", "g2"])
    np.testing.assert_array_equal(values[:, 0], np.arange(6.0))
    np.testing.assert_array_equal(values[:, 1], [np.nan, 10, 20, np.nan, np.nan, np.nan])
    assert np.isnan(gan.matrix("std")[2]).all()


def test_frames_come_in_the_order_of_time(gan):
    frames = list(gan.frames())
    assert [each.time for each in frames] == sorted(each.time for each in frames)
    assert [len(each.tensors) for each in frames if each.optimizer == "G"] == [0, 2, 2]
    assert [(each.optimizer, each.step) for each in gan.frames(start=4)] == [("D", 4), ("D", 5)]


def test_events_and_meta(gan):
    assert [event["kind"] for event in gan.events] == ["earlier", "later"]
    assert np.isnan(gan.events[1]["value"])
    assert gan.meta["script"] == "gan.py"
    assert gan.problems == []
    assert gan.modules.num_rows == 0


def test_module_rows():
    recorder = MemoryRecorder(meta={})
    rows = [
        {"step": 3, "optimizer": "sgd", "module": f"layer{at}", "what": "output", "norm": at, "x": 1} for at in (0, 1)
    ]
    recorder.put_module_rows(rows)
    table = recorder.run.modules
    recorder.close()
    assert table["module"].to_pylist() == ["layer0", "layer1"]
    assert table["norm"].to_pylist() == [0.0, 1.0]
    assert table["numel"].to_pylist() == [None, None]


def test_an_empty_record_has_empty_answers(tmp_path):
    Recorder(tmp_path, meta={"a": 1}).close()
    run = open_run(tmp_path)
    assert run.steps.num_rows == run.tensors.num_rows == 0
    assert run.optimizers == []
    assert run.series("loss").tolist() == []
    assert run.matrix("norm")[2].shape == (0, 0)
    assert list(run.frames()) == []
    assert [event["kind"] for event in run.events] == ["end"]


def test_paths_that_are_no_run(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        open_run(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="holds no run"):
        open_run(tmp_path)


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    with Recorder_with(tmp_path, range(3)):
        pass
    with pytest.raises(InputError, match=r"already holds a run with 3 steps.*overwrite=True.*--overwrite"):
        Recorder(tmp_path, meta={})
    (tmp_path / "mine.txt").write_text("stays")
    with Recorder_with(tmp_path, range(2), overwrite=True):
        pass
    assert open_run(tmp_path).series("step").tolist() == [0, 1]
    assert (tmp_path / "mine.txt").read_text() == "stays"
    with pytest.raises(InputError, match="is a file"):
        Recorder(tmp_path / "mine.txt", meta={})
    with pytest.raises(InputError, match="cannot write the run folder"):
        Recorder(tmp_path / "mine.txt" / "below", meta={})


class Recorder_with:
    def __init__(self, path, steps, **options):
        self.recorder = Recorder(path, **{"meta": {}, **options})
        for step in steps:
            self.recorder.put(frame(step, tensors=2), keep=True)

    def __enter__(self):
        return self.recorder

    def __exit__(self, *_):
        self.recorder.close()
        assert self.recorder.problem is None


def test_ranks_and_restarts_share_a_folder(tmp_path):
    first = Recorder_with(tmp_path, range(4), meta={"script": "a.py"})
    with Recorder_with(tmp_path, range(4), meta={"script": "a.py", "host": "b"}, rank=1, join=True):
        pass
    with first:
        pass
    with Recorder_with(tmp_path, range(2, 6), meta={}, join=True):
        pass
    run = open_run(tmp_path)
    assert run.steps.num_rows == 12
    assert run.steps["rank"].to_pylist() == [0] * 8 + [1] * 4
    assert len(set(run.steps["process"].to_pylist())) == 3
    assert run.series("step").tolist() == [0, 1, 2, 3, 2, 3, 4, 5]
    assert run.series("step", rank=1).tolist() == [0, 1, 2, 3]
    assert run.matrix("norm")[0].tolist() == [0, 1, 2, 3, 2, 3, 4, 5]
    assert len(list(run.frames())) == 8
    assert run.meta["host"] == "b"
    assert run.meta["rank"] == 0
    assert run.problems == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("first", [0, 1, 2, None])
def test_several_ranks_replace_a_run_of_more_ranks_and_nothing_of_each_other(tmp_path, order, first):
    """`first` wrote run.json of the old run; None: nobody can tell who did."""
    for rank in sorted(range(3), key=lambda rank: rank != (first or 0)):
        with Recorder_with(tmp_path, range(4), meta={"run": "old", "old": True}, rank=rank, world=3):
            pass
    if first is None:
        (tmp_path / "run.json").write_bytes(b'{"run": "old", "old": tr')
    (tmp_path / "mine.txt").write_text("stays")
    for rank in order:
        with Recorder_with(tmp_path, range(2), meta={"run": "new"}, rank=rank, world=2, overwrite=True):
            pass
    run = open_run(tmp_path)
    assert run.steps["rank"].to_pylist() == [0, 0, 1, 1]
    assert (run.meta["run"], run.meta.get("old")) == ("new", None)
    assert len(run.events) == 2
    assert run.problems == []
    assert {json.loads(file.read_bytes())["run"] for file in tmp_path.glob("run*.json")} == {"new"}
    assert len(list(tmp_path.glob("run*.json"))) == 2
    assert (tmp_path / "mine.txt").read_text() == "stays"


def test_one_process_replaces_a_run_of_several_ranks_as_a_whole(tmp_path):
    for rank in range(2):
        with Recorder_with(tmp_path, range(4), rank=rank, world=2):
            pass
    with Recorder_with(tmp_path, range(1), overwrite=True):
        pass
    assert open_run(tmp_path).steps["rank"].to_pylist() == [0]


def test_restarts_keep_their_order_when_the_clock_was_set_back(tmp_path):
    """Each attempt an hour, by its clock, before the one that it replaced."""
    for back, steps in enumerate((range(3), range(2, 5), range(4, 6), range(6, 7))):
        recorder = Recorder(tmp_path, meta={}, join=back > 0)
        for step in steps:
            recorder.put(frame(step, tensors=2, time=1e9 - 3600 * back + step), keep=True)
        recorder.close()
    run = open_run(tmp_path)
    assert run.series("step").tolist() == run.matrix("norm")[0].tolist() == [0, 1, 2, 2, 3, 4, 4, 5, 6]
    assert [each.step for each in run.frames()] == [0, 1, 2, 2, 3, 4, 4, 5, 6]
    assert run.steps["step"].to_pylist() == [0, 1, 2, 2, 3, 4, 4, 5, 6]


def test_a_process_without_a_count_is_placed_by_its_clock():
    """A fork writes no run file of its own: it follows the attempt in which it began."""
    begun = {(0, "a"): 100.0, (0, "b"): 50.0, (0, "fork"): 60.0, (0, "early"): 10.0}
    order = in_order_of_beginning(begun, {(0, "a"): 0, (0, "b"): 1})
    assert [process for _, process in order] == ["early", "a", "b", "fork"]
    assert in_order_of_beginning(begun, {}) == sorted(begun, key=begun.__getitem__)


def test_a_record_is_read_while_it_is_written(tmp_path):
    recorder = Recorder(tmp_path, meta={})
    run = open_run(tmp_path)
    for step in range(40):
        recorder.put(frame(step, tensors=20), keep=True)
        if step % 7 == 0:
            assert recorder.flush()
            assert run.reload().series("step").tolist() == list(range(step + 1))
            assert run.matrix("norm")[0].tolist() == list(range(step + 1))
            assert run.problems == []
    assert recorder.run.series("step").tolist() == list(range(40))
    recorder.close()


def test_what_is_damaged_is_said_and_the_rest_is_read(tmp_path):
    with Recorder_with(tmp_path, range(10)) as recorder:
        recorder.event({"kind": "x"})
    with open(next(tmp_path.glob("events-*")), "ab") as file:
        file.write(b'{"kind": "tor')
    tensors = next(tmp_path.glob("tensors-*"))
    tensors.write_bytes(tensors.read_bytes()[:-300])
    (tmp_path / "steps-0-1x2-00000.arrows").write_bytes(b"")
    (tmp_path / "steps-0-1x3-00000.arrows").write_bytes(os.urandom(999))
    (tmp_path / "run.json").unlink()
    run = open_run(tmp_path)
    assert run.series("step").tolist() == list(range(10))
    assert [event["kind"] for event in run.events] == ["x", "end"]
    assert run.meta == {}
    said = "\n".join(run.problems)
    for part in ("run.json is missing", "events-", "tensors-", "1x2", "1x3"):
        assert part in said
    (tmp_path / "run.json").write_text('{"script": NaN')
    assert any("not JSON" in problem for problem in run.reload().problems)


def test_rows_that_stand_in_two_segments_count_once(tmp_path):
    with Recorder_with(tmp_path, range(10)):
        pass
    for kind in ("steps", "tensors"):
        whole = next(tmp_path.glob(f"{kind}-*"))
        whole.with_name(whole.name.replace("00000", "00001")).write_bytes(whole.read_bytes())
    run = open_run(tmp_path)
    assert run.series("step").tolist() == list(range(10))
    assert run.tensors.num_rows == 20
    assert_same_frame(list(run.frames())[9], frame(9, tensors=2, time=run.series("time")[9]))


def test_a_folder_that_vanishes_while_it_is_read_is_a_problem_not_an_exception(tmp_path):
    with Recorder_with(tmp_path / "run", range(3)):
        pass
    run = open_run(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert run.reload().series("step").tolist() == [0, 1, 2]
    assert "no longer" in run.problems[0]
