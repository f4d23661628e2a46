"""What a sink does to its frame stays with it."""

from __future__ import annotations

import numpy as np
import pytest
from sink_frames import frame

import gradmedic as gm
from gradmedic.sinks.frame_copy import own_copy
from gradmedic.sinks.queued import Queued


def test_a_copy_says_the_same_and_shares_no_part_that_can_be_changed():
    original = frame(3, histogram=True, logged={"a": 1.0}, modules=({"name": "m", "norm": np.array([1.0])},))
    copy = own_copy(original)
    for name in ("step", "optimizer", "time", "loss", "lrs", "grad_norm", "clipped", "overhead_seconds", "logged"):
        assert getattr(copy, name) == getattr(original, name)
    assert copy.tensors.names == original.tensors.names
    for name, column in original.tensors.columns.items():
        np.testing.assert_array_equal(copy.tensors.columns[name], column)
    arrays = [*copy.tensors.columns.values(), copy.tensors.log2_hist, copy.modules[0]["norm"]]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 7
    copy.grad_norm, copy.logged["a"], copy.modules[0]["name"] = -1.0, "bad", "other"
    copy.tensors.columns.clear()
    assert (original.grad_norm, original.logged, original.modules[0]["name"]) == (5.0, {"a": 1.0}, "m")
    assert list(original.tensors["a.weight"].values())
    original.tensors.columns["norm"][0] = 2.0  # the record's own arrays are as they were


def test_what_is_no_frame_is_passed_on():
    thing = object()
    assert own_copy(thing) is thing


def test_a_sink_that_writes_to_its_frame_spoils_neither_the_record_nor_another_sink(capfd):
    class Spoils:
        def emit(self, frame):
            frame.grad_norm = -1.0
            frame.logged["a"] = "bad"
            frame.tensors.columns["norm"][:] = -7

        def emit_finding(self, finding): ...

        def close(self): ...

    class Keeps(Spoils):
        frames = ()

        def emit(self, frame):
            self.frames = (*self.frames, frame)

    import torch

    kept = Keeps()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, sinks=[Spoils(), Queued(kept)]) as monitor:
        for _ in range(3):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            monitor.log(a=1.0)
    assert min(monitor.run.steps["grad_norm"].to_pylist()) > 0
    assert min(monitor.run.tensors["norm"].to_pylist()) > 0
    assert [(each.grad_norm > 0, each.logged) for each in kept.frames] == [(True, {"a": 1.0})] * 3
    assert "sink Spoils gets nothing more: ValueError: assignment destination is read-only" in capfd.readouterr().err
