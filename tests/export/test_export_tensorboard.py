"""TensorBoard's own reader finds what was recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from export_runs import HOSTILE, write_run
from tensorboard.backend.event_processing import event_accumulator

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.export import export_run, tensorboard_files

EVERYTHING = {"scalars": 0, "histograms": 0, "tensors": 0, "compressedHistograms": 0, "images": 0}


def read(folder):
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance=EVERYTHING)
    accumulator.Reload()
    return accumulator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "exp1")


@pytest.fixture(scope="module")
def board(folder, tmp_path_factory):
    return read(export_run(folder, "tensorboard", tmp_path_factory.mktemp("out") / "tb").folder)


def same(got, expected):
    expected = float(np.float32(expected)) if abs(expected) <= 3.4e38 or not math.isfinite(expected) else math.inf
    return got == expected or (math.isnan(got) and math.isnan(expected))


def test_scalars(folder, board):
    rows = gm.open_run(folder).steps.to_pylist()
    for column in ("loss", "lr", "grad_norm", "step_seconds"):
        expected = [(row["step"], row[column], row["time"]) for row in rows if row[column] is not None]
        got = board.Scalars(f"train/{column}")
        assert [(event.step, event.wall_time) for event in got] == [(step, time) for step, _, time in expected]
        assert all(same(event.value, value) for event, (_, value, _) in zip(got, expected, strict=True))
    assert [event.step for event in board.Scalars("train/logged.accuracy")] == [at for at in range(12) if at % 3]


def test_norms_by_tensor(folder, board):
    steps, names, values = gm.open_run(folder).matrix("norm")
    assert names == ["a.weight", HOSTILE]
    for at, name in enumerate(names):
        got = board.Scalars(f"norm/{name}")
        assert [event.step for event in got] == steps.tolist()
        assert all(same(event.value, value) for event, value in zip(got, values[:, at], strict=True))


def test_magnitudes_as_histograms(folder, board):
    rows = gm.open_run(folder).tensors.to_pylist()
    expected = [row for row in rows if row["name"] == "a.weight" and row["log2_hist"] is not None]
    got = board.Histograms("magnitude/a.weight")
    assert [event.step for event in got] == [row["step"] for row in expected] == [0, 4, 8]
    for event, row in zip(got, expected, strict=True):
        histogram = event.histogram_value
        assert histogram.num == row["zero_count"] + sum(row["log2_hist"])
        counts = dict(zip(histogram.bucket_limit, histogram.bucket, strict=True))
        for bin_, count in enumerate(row["log2_hist"]):
            assert counts.get(2.0 ** (bin_ - 47), 0) == count


def test_findings_as_text(board):
    (event,) = board.Tensors("finding/GM201")
    assert event.step == 2
    assert "It is not a number." in event.tensor_proto.string_val[0].decode()


def test_selection(folder, tmp_path):
    board = read(
        export_run(folder, "tensorboard", tmp_path / "out", steps="4:6", columns=["loss", "update_norm"]).folder
    )
    assert set(board.Tags()["scalars"]) == {"train/loss", "update_norm/a.weight", f"update_norm/{HOSTILE}"}
    assert [event.step for event in board.Scalars("train/loss")] == [4, 5]
    assert not board.Tags()["histograms"]


def test_processes_have_folders_of_their_own(tmp_path):
    folder = tmp_path / "restarted"
    write_run(folder, steps=5)
    write_run(folder, steps=3, optimizers=("G", "D"), began=2000.0)
    done = export_run(folder, "tensorboard", tmp_path / "out")
    assert len(done.files) == 2
    boards = [read((done.folder / name).parent) for name in done.files]
    # The run has several optimizers, so all of its tags name theirs.
    counts = [len(board.Scalars(tag)) for board, tag in zip(boards, ("adam/lr", "G/lr"), strict=True)]
    assert counts == [5, 3]


def test_where_tensorboard_is_missing(folder, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(tensorboard_files.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"pip install 'gradmedic\[tensorboard\]'"):
        export_run(folder, "tensorboard", tmp_path / "out")
    assert not (tmp_path / "out").exists()
