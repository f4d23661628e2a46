"""W&B offline: what its own log of transactions holds, and that the script's run keeps its step counter."""

from __future__ import annotations

import json
import math
import struct
import time
from types import SimpleNamespace

import pytest
import wandb
from sink_frames import HOSTILE, finding, frame, sick
from wandb.proto.wandb_internal_pb2 import Record

import gradmedic as gm
from gradmedic.sinks import wandb_run
from gradmedic.sinks.base import RunLabel

_BLOCK = 32768


def records(path):
    """Read a transaction log: LevelDB's format, pieces of records in blocks of 32 KiB after a header of 7 bytes."""
    data, at, whole, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def whole(path):
    """Return all records; the process of W&B's own that writes them may still be at it when `finish` returns."""
    deadline = time.monotonic() + 30
    while True:
        found = records(path)
        if any(each.WhichOneof("record_type") == "exit" for each in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def history(path):
    rows = []
    for record in whole(path):
        if record.WhichOneof("record_type") == "history":
            rows.append({})
            for item in record.history.item:  # a value that is an object comes by its keys, or whole
                *above, key = item.nested_key or [item.key]
                place = rows[-1].setdefault(above[0], {}) if above else rows[-1]
                place[key] = json.loads(item.value_json)
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where W&B writes; it reads its environment once in a process."""
    place = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_DIR", str(place))
        patch.setenv("WANDB_SILENT", "true")
        yield place


@pytest.fixture
def offline(folder):
    before = set(folder.rglob("run-*.wandb"))
    return lambda: sorted(set(folder.rglob("run-*.wandb")) - before)


def test_a_run_of_its_own(offline):
    sink = gm.sinks.Wandb("digits", run="exp1", layers_every=1)
    sink.begin(RunLabel("ignored"))
    sink.emit(frame(10, histogram=True, logged={HOSTILE: 0.5}))
    sink.emit(sick(11))
    sink.emit_finding(finding())
    assert wandb.run is None
    sink.close()
    (path,) = offline()
    first, second = history(path)
    assert (first["gradmedic/step"], first["_step"]) == (10, 0)
    assert (second["gradmedic/step"], second["_step"]) == (11, 1)
    assert first["gradmedic/loss"] == pytest.approx(1 / 11)
    assert "gradmedic/loss" not in second
    assert math.isnan(float(second["gradmedic/grad_norm/pre_clip"]))
    assert float(second["gradmedic/grad_norm/post_clip"]) == math.inf
    assert first["gradmedic/layer_grad_norm/a.weight"] == 11.0
    # bins 45 and 46 begin at 2^-3 and 2^-2
    expected = {"_type": "histogram", "values": [2, 3], "bins": [-3.0, -2.0, -1.0]}
    assert first["gradmedic/log2_grad/a.weight"] == expected
    assert all(len(key) < 300 and key.isprintable() for key in first)
    defined = {each.metric.glob_name: each.metric.step_metric for each in whole(path) if each.metric.glob_name}
    assert defined == {"gradmedic/*": "gradmedic/step"}
    summaries = str([each.summary for each in whole(path) if each.WhichOneof("record_type") == "summary"])
    assert "GM201" in summaries


def test_the_scripts_run_is_joined_and_keeps_its_steps(offline):
    run = wandb.init(project="theirs")
    sink = gm.sinks.Wandb()
    sink.begin(RunLabel())
    for step in range(6):
        sink.emit(frame(step))
        if step % 2:
            run.log({"theirs": step}, step=step * 10)  # W&B refuses steps that go back
    assert run.step <= 60
    sink.close()
    assert wandb.run is run  # still open
    run.finish()
    (path,) = offline()
    rows = history(path)
    theirs = [(row["_step"], row["theirs"]) for row in rows if "theirs" in row]
    assert theirs == [(10, 1), (30, 3), (50, 5)]
    ours = [row["gradmedic/step"] for row in rows if "gradmedic/step" in row]
    assert ours == sorted(ours)
    assert ours[-1] == 5


def test_with_a_project_the_scripts_run_is_not_touched(offline):
    run = wandb.init(project="theirs")
    sink = gm.sinks.Wandb("ours")
    sink.begin(RunLabel("exp1"))
    sink.emit(frame(0))
    run.log({"theirs": 1})
    assert wandb.run is run
    sink.close()
    assert wandb.run is run
    run.log({"theirs": 2})
    run.finish()
    rows = [history(path) for path in offline()]
    assert sorted(len(each) for each in rows) == [1, 2]
    assert not any("gradmedic/step" in row for each in rows if len(each) == 2 for row in each)


def test_the_terminal_is_never_asked(offline, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(wandb_run.sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    online = SimpleNamespace(settings=SimpleNamespace(mode="online"))
    stub = SimpleNamespace(api=SimpleNamespace(api_key=None), setup=lambda: online)
    with pytest.raises(gm.InputError, match="not logged in"):
        wandb_run._refuse_to_ask(stub)
