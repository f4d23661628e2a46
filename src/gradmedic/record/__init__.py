"""Keeping: what was measured goes to a run folder (or to memory), and comes back as a `Run`.

The file format is described in docs/record.md. Public: `Recorder`, `MemoryRecorder`, `open_run`, `Run`.
"""

from __future__ import annotations

from gradmedic.record.budget import parse_budget as parse_budget
from gradmedic.record.recorder import MemoryRecorder as MemoryRecorder
from gradmedic.record.recorder import Recorder as Recorder
from gradmedic.record.run import Run as Run
from gradmedic.record.run import open_run as open_run

__all__ = ["MemoryRecorder", "Recorder", "Run", "open_run", "parse_budget"]
