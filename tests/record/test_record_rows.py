"""Frames of all sorts in one batch, and back, against the frames themselves."""

import numpy as np
import pytest
from record_samples import assert_same_frame, table

from gradmedic.frame import Frame, TensorTable
from gradmedic.record import MemoryRecorder
from gradmedic.record.arrays import cut, numbers
from gradmedic.record.frames import frames_of
from gradmedic.record.parts import Parts
from gradmedic.record.rows import RowBuilder
from gradmedic.record.schema import MODULES, SCHEMAS, STEPS, TENSORS

HUGE = 2**62 + 1  # no float64 holds it


def read_back(frames):
    """Put all frames into one flush and return what is read."""
    recorder = MemoryRecorder(meta={})
    for frame in frames:
        recorder.put(frame, keep=True)
    got = list(recorder.run.frames())
    recorder.close()
    assert recorder.problem is None
    return got


def assert_come_back(frames):
    got = read_back(frames)
    assert len(got) == len(frames)
    for one, other in zip(got, frames, strict=True):
        assert_same_frame(one, other)


def scalars(step):
    """Every third value is absent, not finite or extreme, at another place in every step."""
    values = [None, np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.5, 1e308]
    names = ("loss", "lr", "grad_norm", "grad_norm_post", "clip_threshold", "transform_scale", "loss_scale")
    return {name: values[(at + step) % len(values)] for at, name in enumerate(names)}


def test_scalars_that_come_and_go_within_a_batch():
    frames = [
        Frame(
            step,
            ("G", "D", "дискриминатор 判别器")[step % 3],
            time=float(step),
            skipped=step % 4 == 0,
            skip_reason=(None, "", "nonfinite", "überlauf")[step % 4],
            clipped=step % 2 == 0,
            nonfinite=(0, HUGE)[step % 2],
            lrs=tuple(0.1 * at for at in range(step % 3)),
            logged={f"精度 {at}": (np.nan, 0.5)[at % 2] for at in range(step % 4)},
            **scalars(step),
        )
        for step in range(40)
    ]
    assert_come_back(frames)


def test_tables_with_other_tensors_other_columns_and_histograms_within_a_batch():
    frames = []
    for step in range(24):
        whole = table(step % 5 + 1, seed=step, histogram=step % 3 == 0)
        left = {name: column for at, (name, column) in enumerate(whole.columns.items()) if (at + step) % 4}
        names = tuple(f"层.{step % 7}.{at}" for at in range(len(whole.names)))
        frames.append(Frame(step, ("a", "b")[step % 2], tensors=TensorTable(names, left, whole.log2_hist)))
    assert_come_back(frames)


def test_large_integers_beside_counts_that_are_floats_or_absent():
    counts = [np.array([HUGE, 3]), np.array([np.nan, 3.0]), np.array([np.inf, 2.0**53]), None]
    frames = [
        Frame(step, "a", tensors=TensorTable(("v", "w"), {} if count is None else {"numel": count}))
        for step, count in enumerate(counts)
    ]
    first, *others, absent = read_back(frames)
    assert first.tensors.columns["numel"].tolist() == [HUGE, 3]
    assert [other.tensors.columns["numel"].tolist() for other in others] == [
        [pytest.approx(np.nan, nan_ok=True), 3.0],
        [pytest.approx(np.nan, nan_ok=True), 2.0**53],
    ]
    assert "numel" not in absent.tensors.columns


def test_bits_of_numbers_are_kept():
    bits = np.random.default_rng(0).integers(0, 2**63, 600, dtype=np.uint64)  # NaN with payloads among them
    bits[:3] = (0x7FF8000000000123, 0x8000000000000000, 0x0000000000000001)
    columns = {"norm": bits.view(np.float64), "cosine_prev": bits[::-1].copy().view(np.float64)}
    names = tuple(map(str, range(600)))
    frames = [Frame(step, "a", tensors=TensorTable(names, columns)) for step in range(3)]
    for got in read_back(frames):
        for name, column in columns.items():
            np.testing.assert_array_equal(got.tensors.columns[name].view(np.uint64), column.view(np.uint64))


def test_very_many_tensors_and_narrow_columns_that_are_views():
    wide = np.arange(40_000, dtype=np.float32).reshape(20_000, 2)
    names = tuple(f"expert.{at}.weight" for at in range(20_000))
    shared = TensorTable(names, {"norm": wide[:, 1], "mean": wide[:, 0], "status": np.zeros(20_000, np.int64)})
    assert_come_back([Frame(step, "a", tensors=shared) for step in range(2)])


def test_a_column_of_another_length_costs_its_own_table_only():
    sound = [table(3, seed=at) for at in range(4)]
    sound[1].columns["mean"] = np.zeros(4)
    sound[2].columns["mean"], sound[2].columns["std"] = np.zeros(2), np.zeros(4)
    recorder = MemoryRecorder(meta={})
    for step, each in enumerate(sound):
        recorder.put(Frame(step, "a", tensors=each), keep=True)
    got = list(recorder.run.frames())
    recorder.close()
    assert [len(each.tensors) for each in got] == [3, 0, 0, 3]
    assert_same_frame(got[3], Frame(3, "a", time=got[3].time, tensors=sound[3]))
    assert recorder.dropped == 2


def test_batches_have_the_schemas_of_the_record():
    rows = RowBuilder()
    frames = [(Frame(0, "a", tensors=table(2)), 0), (Frame(1, "a", tensors=table(3)), -1)]
    for batch, schema in (
        (rows.steps(frames), STEPS),
        (rows.tensors(frames), TENSORS),
        (rows.modules([({"module": "m", "norm": 1.0}, 0), ({"extra": {"x": 1.0}, "call": 2}, -1)]), MODULES),
    ):
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert batch.column("ordinal").to_pylist()[0] == 0
        assert batch.column("ordinal").to_pylist()[-1] is None


def test_module_rows_come_back():
    put = [
        {"module": "块.0", "what": "output", "call": 0, "leaf": "", "norm": np.inf, "numel": HUGE, "extra": {}},
        {"module": "b", "what": "grad_output", "call": 1, "leaf": "[1]", "rms": np.nan, "extra": {"dead": 0.25}},
    ]
    recorder = MemoryRecorder(meta={})
    recorder.put(Frame(0, "a", modules=tuple(put)), keep=True)
    got = next(recorder.run.frames()).modules
    recorder.close()
    np.testing.assert_equal(list(got), put)


def test_columns_are_cut_where_they_were_joined():
    joined = numbers(np.arange(12.0), TENSORS.field("norm").type, np.arange(12) != 7)
    assert [piece.to_pylist() for piece in cut(joined, 3)] == [[0, 1, 2, 3], [4, 5, 6, None], [8, 9, 10, 11]]


def test_rows_are_read_while_written_and_after_closing_alike():
    recorder = MemoryRecorder(meta={})
    frames = [Frame(step, "a", loss=float(step), tensors=table(5, step)) for step in range(9)]
    for frame in frames:
        recorder.put(frame, keep=True)
        recorder.flush()
    live = Parts(recorder._store)
    live.refresh()
    before = {kind: live.tables(kind) for kind in SCHEMAS}
    recorder.close()
    live.refresh()
    for kind, tables in before.items():
        assert all(table.equals(live.tables(kind)[key]) for key, table in tables.items())
    (steps,), (tensors,) = (list(live.tables(kind).values()) for kind in ("steps", "tensors"))
    for one, other in zip(frames_of(steps, tensors, 0), frames, strict=True):
        assert_same_frame(one, other)
