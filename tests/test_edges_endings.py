"""How a record ends, and what is written before it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.monitor import ending


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "finished"),
        (SystemExit(), "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(3), "exit code 3"),
        (SystemExit("a message"), "exit code 1"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("x"), "exception: ValueError"),
    ],
)
def test_the_reason_names_what_ended_the_run(error, reason):
    """R71: a script that was interrupted did not finish."""
    assert ending(error) == reason


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt, "interrupted"), (ValueError, "exception: ValueError")]
)
def test_a_with_block_that_is_left_by_an_exception(error, reason):
    """R71: the exception goes on, and the record says its type."""
    with pytest.raises(error), gm.watch(nn.Linear(2, 1)) as monitor:
        raise error
    assert [event["reason"] for event in monitor.run.events if event["kind"] == "end"] == [reason]


def test_flush_brings_every_step_to_the_folder(tmp_path):
    """R70: after flush another reader sees what was trained, the last step included."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, record=tmp_path / "run", strict=True) as monitor:
        assert monitor.flush() is None
        for step in range(3):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            monitor.flush()
            assert [frame.step for frame in gm.open_run(tmp_path / "run").frames()] == list(range(step + 1))
    monitor.flush()  # nothing is left to be written
    assert len(list(monitor.run.frames())) == 3


def test_flush_of_a_record_in_memory():
    """R70: nothing to be written, nothing to be said."""
    with gm.watch(nn.Linear(2, 1), strict=True) as monitor:
        monitor.flush()
