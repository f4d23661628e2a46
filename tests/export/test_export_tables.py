"""Parquet and CSV hold what the record holds, number for number."""

from __future__ import annotations

import csv
import io
import json
import math
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from export_runs import HOSTILE, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.export import export_run
from gradmedic.export.csv_files import _lines
from gradmedic.export.selection import parse_columns, parse_steps
from gradmedic.frame import Frame
from gradmedic.record import MemoryRecorder, Recorder


def plain(table):
    fields = [field.with_type(pa.utf8()) if pa.types.is_dictionary(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def same(left, right):
    """Equal value for value, NaN equal to NaN."""
    return repr(left) == repr(right)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "exp1", optimizers=("G", "D"))


@pytest.fixture(scope="module")
def tables(folder, tmp_path_factory):
    return export_run(folder, "csv", tmp_path_factory.mktemp("out") / "csv").folder


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(text):
    return None if text == "" else float(text)


def test_parquet_holds_every_row_and_column(folder, tmp_path):
    done = export_run(folder, "parquet", tmp_path / "out")
    run = gm.open_run(folder)
    assert done.files == ("steps.parquet", "tensors.parquet", "modules.parquet", "events.parquet", "meta.json")
    assert done.bytes == sum((done.folder / name).stat().st_size for name in done.files)
    for kind in ("steps", "tensors", "modules"):
        expected = plain(getattr(run, kind))
        got = pq.read_table(done.folder / f"{kind}.parquet")
        assert got.schema.names == expected.schema.names
        assert same(got.to_pylist(), expected.to_pylist())
    assert json.loads((done.folder / "meta.json").read_text())["script"] == "train.py"
    events = pq.read_table(done.folder / "events.parquet").to_pylist()
    assert [event["kind"] for event in events] == [event["kind"] for event in run.events]
    assert [event["code"] for event in events if event["code"]] == ["GM201"]
    assert json.loads(events[0]["json"])["kind"] == events[0]["kind"]


def test_parquet_is_compressed_with_zstd(folder, tmp_path):
    export_run(folder, "parquet", tmp_path / "out")
    group = pq.ParquetFile(tmp_path / "out" / "tensors.parquet").metadata.row_group(0)
    assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}


def test_each_row_once_where_a_record_has_many_segments(tmp_path):
    names = [f"layer{at}" for at in range(30)]
    folder = write_run(tmp_path / "many", steps=150, names=names, budget="300KB")
    assert len(list(folder.glob("tensors-*.arrows"))) > 3
    export_run(folder, "parquet", tmp_path / "out")
    run = gm.open_run(folder)
    got = pq.read_table(tmp_path / "out" / "tensors.parquet")
    assert same(got.to_pylist(), plain(run.tensors).to_pylist())


def test_restarts_follow_each_other(tmp_path):
    folder = tmp_path / "restarted"
    write_run(folder, steps=6)
    write_run(folder, steps=4, began=2000.0)
    export_run(folder, "parquet", tmp_path / "out")
    run = gm.open_run(folder)
    for kind in ("steps", "tensors"):
        got = pq.read_table(tmp_path / "out" / f"{kind}.parquet")
        assert same(got.to_pylist(), plain(getattr(run, kind)).to_pylist())


def test_csv_reads_back_to_the_same_bits(folder, tables):
    run = gm.open_run(folder)
    for kind in ("steps", "tensors", "modules"):
        rows = read_csv(tables / f"{kind}.csv")
        expected = plain(getattr(run, kind))
        assert len(rows) == expected.num_rows
        for column in expected.schema:
            if pa.types.is_nested(column.type):
                continue
            for row, value in zip(rows, expected[column.name].to_pylist(), strict=True):
                text = row[column.name]
                if value is None:
                    assert text == ""
                elif isinstance(value, bool):
                    assert text == str(value).lower()
                elif isinstance(value, str):
                    assert text == value
                else:
                    assert struct.pack("d", float(text)) == struct.pack("d", value)


def test_csv_tells_null_nan_and_infinity_apart(tables):
    rows = [row for row in read_csv(tables / "steps.csv") if row["optimizer"] == "G"]
    assert [row["loss"] for row in rows[:5]] == ["0.30000000000000004", "NaN", "inf", "", "1e+300"]


def test_csv_has_columns_for_maps_and_lists_and_none_for_histograms(tables):
    rows = read_csv(tables / "steps.csv")
    for row in rows:
        step = int(row["step"])
        assert number(row["logged.accuracy"]) == (step / 7 if step % 3 else None)
        assert number(row["logged."]) == (None if step % 3 else 1.0)
        assert number(row["lrs.0"]) == 1e-3
        assert number(row["lrs.1"]) == (1e-4 if step % 2 else None)
    assert "log2_hist" not in read_csv(tables / "tensors.csv")[0]
    assert {row["extra.k"] for row in read_csv(tables / "modules.csv")} == {"1"}


def test_csv_survives_hostile_names(tables):
    assert {row["name"] for row in read_csv(tables / "tensors.csv")} == {"a.weight", HOSTILE}
    reasons = {row["skip_reason"] for row in read_csv(tables / "steps.csv")}
    assert reasons == {"", 'because, "so"\nit was'}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(width=64),
            st.none() | st.text(max_size=8),
            st.none() | st.integers(-(2**63), 2**63 - 1),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_cell_reads_back(rows):
    encodable = [(a, None if b is None else b.encode("utf-8", "replace").decode(), c) for a, b, c in rows]
    kinds = (pa.float64(), pa.utf8(), pa.int64())
    columns = [pa.array([row[at] for row in encodable], kind) for at, kind in enumerate(kinds)]
    data = _lines(pa.Table.from_arrays(columns, names=["a", "b", "c"])).decode()
    got = list(csv.reader(io.StringIO(data, newline=""), strict=True))
    assert len(got) == len(rows)
    for (a, b, c), (text_a, text_b, text_c) in zip(encodable, got, strict=True):
        assert (text_a == "") == (a is None)
        if a is not None:
            assert text_a == "NaN" if math.isnan(a) else struct.pack("d", float(text_a)) == struct.pack("d", a)
        assert text_b == (b or "")
        assert text_c == ("" if c is None else str(c))


def test_selection_of_steps_and_columns(folder, tmp_path):
    export_run(folder, "parquet", tmp_path / "out", steps="2:5", columns=["norm,loss", "logged.accuracy"])
    steps = pq.read_table(tmp_path / "out" / "steps.parquet")
    assert set(steps["step"].to_pylist()) == {2, 3, 4}
    assert steps.schema.names == ["rank", "process", "step", "optimizer", "loss"]
    tensors = pq.read_table(tmp_path / "out" / "tensors.parquet")
    assert tensors.schema.names == ["rank", "process", "step", "optimizer", "name", "norm"]
    assert set(tensors["step"].to_pylist()) == {2, 3, 4}
    export_run(folder, "csv", tmp_path / "csv", steps="2:5", columns=["logged.accuracy"])
    row = read_csv(tmp_path / "csv" / "steps.csv")[0]
    assert list(row) == ["rank", "process", "step", "optimizer", "logged.accuracy"]


@pytest.mark.parametrize("text", ["5", "a:b", "5:5", "7:3", "-3:4", "::", ":0"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="steps"):
        parse_steps(text)


def test_ranges():
    assert parse_steps(None) == (None, None)
    assert parse_steps("3:") == (3, None)
    assert parse_steps(" :9 ") == (None, 9)
    assert parse_steps(":") == (None, None)


def test_an_unknown_column_is_named():
    with pytest.raises(InputError, match=r"no column 'nrom'.*norm"):
        parse_columns(["loss, nrom"])


def test_a_run_in_memory(tmp_path):
    recorder = MemoryRecorder(meta={})
    recorder.put(Frame(0, "adam", loss=0.5), keep=False)
    with pytest.raises(InputError, match="name the target folder"):
        export_run(recorder.run, "csv")
    assert export_run(recorder.run, "csv", tmp_path / "out").files == ("steps.csv", "events.csv", "meta.json")
    recorder.close()


def test_a_torn_record_is_exported_and_told(tmp_path):
    write_run(tmp_path / "run", copy=tmp_path / "torn")
    file = next((tmp_path / "torn").glob("tensors-*.arrows"))
    file.write_bytes(file.read_bytes()[:-300])
    done = export_run(tmp_path / "torn", "parquet", tmp_path / "out")
    assert any("torn" in problem for problem in done.problems)
    assert len(set(export_run(tmp_path / "torn", "csv").problems)) == len(done.problems)
    got = pq.read_table(tmp_path / "out" / "tensors.parquet")
    assert 0 < got.num_rows < gm.open_run(tmp_path / "run").tensors.num_rows
    assert same(got.to_pylist(), plain(gm.open_run(tmp_path / "torn").tensors).to_pylist())


def test_an_empty_run(tmp_path):
    Recorder(tmp_path / "empty", meta={}).close()
    for to in ("parquet", "csv"):
        done = export_run(tmp_path / "empty", to)
        assert done.folder == tmp_path / f"empty-{to}"
        assert set(done.files) == {f"events.{to}", "meta.json"}


def test_values_are_not_rounded_by_float32(tmp_path):
    recorder = MemoryRecorder(meta={})
    value = np.nextafter(1.0, 2.0)
    recorder.put(Frame(0, "adam", loss=float(value)), keep=False)
    export_run(recorder.run, "csv", tmp_path / "out")
    assert float(read_csv(tmp_path / "out" / "steps.csv")[0]["loss"]) == value
    recorder.close()
