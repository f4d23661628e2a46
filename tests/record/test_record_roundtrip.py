import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_samples import assert_same_frame, assert_same_table, empty_frame, frame, table
from record_strategies import frames

from gradmedic.frame import Frame, TensorTable
from gradmedic.record import MemoryRecorder, Recorder, open_run


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(0, 8), st.lists(st.integers(0, 8)))
def test_frames_come_back_as_they_went(data, count, flush_after):
    recorder = MemoryRecorder(meta={})
    put = [data.draw(frames(step)) for step in range(count)]
    for at, each in enumerate(put):
        recorder.put(each, keep=True)
        if at in flush_after:
            assert recorder.flush()
    got = list(recorder.run.frames())
    recorder.close()
    assert recorder.problem is None
    assert len(got) == len(put)
    for one, other in zip(got, put, strict=True):
        assert_same_frame(one, other)


def test_a_frame_of_which_nothing_is_known(tmp_path):
    recorder = Recorder(tmp_path / "run", meta={})
    recorder.put(empty_frame(), keep=True)
    recorder.close()
    run = open_run(tmp_path / "run")
    assert_same_frame(next(run.frames()), empty_frame())
    assert np.isnan(run.series("loss")).all()
    assert np.isnan(run.series("clipped")).all()
    assert recorder.problem is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, 1e308, 5e-324])
def test_extreme_values_are_kept_as_they_are(value):
    extreme = TensorTable(("w",), {"norm": np.array([value]), "nan_count": np.array([7])}, np.zeros((1, 64), np.int64))
    recorder = MemoryRecorder(meta={})
    recorder.put(Frame(0, "sgd", loss=value, grad_norm=value, logged={"x": value}, tensors=extreme), keep=True)
    got = next(recorder.run.frames())
    recorder.close()
    np.testing.assert_equal([got.loss, got.grad_norm, got.logged["x"]], [value] * 3)
    assert_same_table(got.tensors, extreme)


def test_counts_with_gaps_come_back_with_gaps():
    gaps = TensorTable(("a", "b"), {"numel": np.array([np.nan, 3.0]), "norm": np.array([1.0, np.nan])})
    recorder = MemoryRecorder(meta={})
    recorder.put(Frame(0, "sgd", tensors=gaps), keep=True)
    got = next(recorder.run.frames()).tensors
    recorder.close()
    np.testing.assert_array_equal(got.column("numel"), [np.nan, 3.0])
    np.testing.assert_array_equal(got.column("norm"), [1.0, np.nan])


def test_tables_only_where_kept_and_histograms_only_where_measured():
    recorder = MemoryRecorder(meta={}, flight=4)
    put = [Frame(step, "sgd", tensors=table(3, step, histogram=step % 4 == 0)) for step in range(12)]
    for each in put:
        recorder.put(each, keep=each.step % 2 == 0)
    got = list(recorder.run.frames())
    recorder.close()
    for one, other in zip(got, put, strict=True):
        if other.step % 2 == 0:
            assert_same_table(one.tensors, other.tensors)
        else:
            assert len(one.tensors) == 0


def test_a_value_that_has_no_place_costs_its_own_frame_only():
    recorder = MemoryRecorder(meta={})
    for step in range(5):
        recorder.put(frame(step, loss="three" if step == 2 else 1.0), keep=True)
    steps = recorder.run.series("step").tolist()
    recorder.close()
    assert steps == [0, 1, 3, 4]
    assert recorder.dropped == 1
    assert "three" in recorder.problem
