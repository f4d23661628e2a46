"""A record folder may hold what is no file."""

from __future__ import annotations

import os

from gradmedic.frame import Frame
from gradmedic.record import Recorder, open_run


def test_a_pipe_named_as_a_part_of_the_record_is_not_waited_for(tmp_path):
    recorder = Recorder(tmp_path / "run", meta={})
    recorder.put(Frame(0, "adam", loss=1.0), keep=True)
    recorder.close()
    os.mkfifo(tmp_path / "run" / "events-0-1x1.jsonl")
    assert open_run(tmp_path / "run").series("loss").tolist() == [1.0]
