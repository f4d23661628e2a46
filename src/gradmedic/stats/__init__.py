"""Statistics of gradients: pure functions from tensors to a table, without hooks or state."""

from __future__ import annotations

from gradmedic.stats.api import gradient_stats as gradient_stats
from gradmedic.stats.api import norms as norms
from gradmedic.stats.capturable import CapturableStats as CapturableStats
from gradmedic.stats.merging import merge as merge
from gradmedic.stats.native import native_available as native_available
from gradmedic.stats.table import StatsTable as StatsTable

__all__ = ["CapturableStats", "StatsTable", "gradient_stats", "merge", "native_available", "norms"]
